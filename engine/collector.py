"""When Python's collector looks at everything that is alive.

It takes tens of milliseconds with some hundred sequences, which all of them would wait for; by
itself it does so in the middle of any pass, about every 70th of 256 sequences. What the engine
makes is freed by reference counts, so little is left to find: it looks while nothing is computed,
and in a loop that never rests once in a long while.
"""

import gc
import time
from collections.abc import Callable

RESTED_S = 5.0  # between two looks at rest
BUSY_S = 300.0  # between two looks of a loop that never rests
_NEVER = 1 << 30  # looks at what is young, after which it looks at everything by itself


def begin_serving() -> None:
    """Keep what start-up made out of every look, and looks at everything to ``Collector``."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


class Collector:
    """Belongs to the engine loop's thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._clock, self._collect = clock, collect
        self._looked = clock()
        self._worked = False  # since then

    def worked(self) -> None:
        """A pass was computed."""
        self._worked = True
        if self._clock() - self._looked >= BUSY_S:
            self._look()

    def rests(self) -> None:
        """There is nothing to compute."""
        if self._worked and self._clock() - self._looked >= RESTED_S:
            self._look()

    def _look(self) -> None:
        self._collect()
        self._looked, self._worked = self._clock(), False
