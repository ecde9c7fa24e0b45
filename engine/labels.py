"""Label values that stay few, whatever tenants and adapters come and go.

The first so many values get a label of their own; one that was not heard of for a while gives its
place to a new one. All others are counted as ``other``: a series that comes and goes with every
request would cost its reader more than it tells.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

OTHER = "other"


class FewLabels:
    """Belongs to one thread."""

    def __init__(
        self,
        most: int,
        *,
        idle_s: float,
        clock: Callable[[], float],
        forget: Callable[[str], None] = lambda value: None,
    ) -> None:
        """``forget`` is told each value that loses its place."""
        self._most, self._idle_s, self._clock, self._forget = most, idle_s, clock, forget
        self._heard: OrderedDict[str, float] = OrderedDict()  # when; longest ago first

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._heard))

    def __contains__(self, value: str) -> bool:
        return value in self._heard

    def of(self, value: str) -> str:
        """The label to count this value under."""
        now = self._clock()
        if value not in self._heard and not self._make_room(now):
            return OTHER
        self._heard[value] = now
        self._heard.move_to_end(value)
        return value

    def _make_room(self, now: float) -> bool:
        if len(self._heard) < self._most:
            return True
        oldest, heard = next(iter(self._heard.items()))
        if now - heard < self._idle_s:
            return False
        del self._heard[oldest]
        self._forget(oldest)
        return True
