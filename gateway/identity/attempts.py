"""Slows down who guesses passwords: by address of the browser, and by the name that is tried.

A few failures are free; each one more doubles the wait. The name's count is what stops a guesser
with many addresses, and is generous, for it can lock its owner out. Lives in one process: with
several gateways each counts what it sees.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE_FAILURES = 5
FIRST_WAIT_S = 15.0
LONGEST_WAIT_S = 900.0
FORGOTTEN_S = 3600.0
MOST_NAMES = 20_000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    until: float = 0.0


class Attempts:
    """Belongs to one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, _Failures] = OrderedDict()

    def wait_s(self, *names: str) -> float:
        """How long none of these may try; 0: now."""
        now = self._clock()
        known = [self._known[name] for name in names if name in self._known]
        return max((0.0, *(each.until - now for each in known)))

    def failed(self, *names: str) -> None:
        now = self._clock()
        for name in names:
            each = self._known.setdefault(name, _Failures())
            self._known.move_to_end(name)
            if now - each.last > FORGOTTEN_S:
                each.count = 0
            each.count, each.last = each.count + 1, now
            if (over := each.count - FREE_FAILURES) >= 0:
                each.until = now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(over, 16))
        while len(self._known) > MOST_NAMES:
            self._known.popitem(last=False)

    def succeeded(self, *names: str) -> None:
        for name in names:
            self._known.pop(name, None)
