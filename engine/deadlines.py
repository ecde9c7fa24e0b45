"""When open requests are to end at the latest.

Most end long before: what was noted of them is cleared away when it has become more than half of
all, not only when it is due. Belongs to the engine loop's thread.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from engine.request import Request

FEW = 32  # not worth clearing away

Find = Callable[[int, str], Request | None]  # an open request, by its connection and name


class Deadlines:
    def __init__(self, find: Find) -> None:
        self._find = find
        self._due: list[tuple[float, int, int, str]] = []  # when, serial, connection, name
        self._most = FEW

    def __len__(self) -> int:
        return len(self._due)

    def add(self, request: Request) -> None:
        if request.deadline is None:
            return
        if len(self._due) >= self._most:
            self._due = [entry for entry in self._due if self._open(entry) is not None]
            heapify(self._due)
            self._most = max(FEW, 2 * len(self._due))
        entry = (request.deadline, request.serial, request.connection, request.submit.request)
        heappush(self._due, entry)

    def due(self, now: float) -> Iterator[Request]:
        """Open requests whose time has come, each once."""
        while self._due and self._due[0][0] <= now:
            if (late := self._open(heappop(self._due))) is not None:
                yield late

    def _open(self, entry: tuple[float, int, int, str]) -> Request | None:
        """None: it has ended, and another may have its name."""
        _, serial, connection, name = entry
        found = self._find(connection, name)
        return found if found is not None and found.serial == serial else None
