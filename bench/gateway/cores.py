"""Which cores each process of a benchmark has to itself, where the machine has that many."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Cores:
    """Those of this process, and which of them are not yet given away."""

    all: list[int]
    free: list[int]

    @classmethod
    def shared(cls) -> "Cores":
        """Nothing has a core to itself."""
        return cls(_mine(), [])

    @classmethod
    def apart(cls) -> "Cores":
        return cls(_mine(), _mine())

    @contextmanager
    def next(self, count: int = 1) -> Iterator[None]:
        """What runs within, or is started there, has so many, or shares all where none are left."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._take(count) or self.all)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        return taken


def _mine() -> list[int]:
    return sorted(os.sched_getaffinity(0))
