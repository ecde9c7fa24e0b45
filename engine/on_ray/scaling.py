"""How many engines there should be: enough for what runs and waits, and not at once fewer.

Imports no ray, so that it is tested in milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

FILLED = 0.6  # share of an engine's seats that should be taken


@dataclass(frozen=True, slots=True)
class Busy:
    """One engine, as it told."""

    open: int  # sequences that run or wait
    seats: int  # that it runs at a time


@dataclass(slots=True)
class Scaling:
    """``wanted`` is asked at every look. More is wanted at once, fewer after ``patience_s`` in
    which fewer would always have done, and then one fewer at a time."""

    least: int
    most: int
    patience_s: float = 60.0
    _since: float | None = None  # of the look from which on fewer may do

    def wanted(self, engines: Sequence[Busy], starting: int, now: float) -> int:
        """``starting``: engines that were begun and do not answer yet."""
        have = len(engines) + starting
        needed = self._bounded(_needed(engines))
        if needed >= have or self._since is None:
            self._since = now
        if have > self.most:
            return self.most
        if needed < have and now - self._since >= self.patience_s:
            self._since = now
            return have - 1
        return max(needed, have)

    def _bounded(self, count: int) -> int:
        return min(max(count, self.least), self.most)


def _needed(engines: Sequence[Busy]) -> int:
    seats = max((engine.seats for engine in engines), default=1)
    return ceil(sum(engine.open for engine in engines) / (FILLED * max(seats, 1)))
