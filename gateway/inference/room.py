"""How many requests may be under way in this process, and whose they are.

The last eighth is nobody's who holds the rest: a flood of one project leaves others a way in.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.counter import Count
from gateway.errors import Unavailable
from gateway.fleet.crew import RETRY_SECONDS


class Room:
    """Belongs to one event loop."""

    def __init__(self, most: int, inflight: Count) -> None:
        self._most, self._inflight = most, inflight
        self._of_one = most - most // 8
        self._held: Counter[str] = Counter()
        self._all = 0

    def require(self, project: str) -> None:
        """Raises Unavailable."""
        if self._all >= self._most or self._held[project] >= self._of_one:
            raise Unavailable("Too many requests are under way.", retry_after=RETRY_SECONDS)

    @contextmanager
    def taken(self, project: str) -> Iterator[None]:
        self._held[project] += 1
        self._count(1)
        try:
            yield
        finally:
            self._held[project] -= 1
            if not self._held[project]:
                del self._held[project]
            self._count(-1)

    def _count(self, change: int) -> None:
        self._all += change
        self._inflight.total += change  # batches have room of their own
