"""Work of tenants for a few threads: of each tenant one piece at a time, and tenants in turn.

So whoever sends much that takes long waits for itself. Others find a thread, and are before all
that a tenant has waiting but the first piece of it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Found = TypeVar("Found")


class CompileTurns(Generic[Found]):
    """Belongs to one event loop."""

    def __init__(self, threads: ThreadPoolExecutor, count: int) -> None:
        """``count``: how many threads there are."""
        self._threads = threads
        self._free = count
        self._busy: set[str] = set()  # tenants
        self._waiting: OrderedDict[str, deque[tuple[Future[Found], Callable[[], Found]]]]
        self._waiting = OrderedDict()  # whose turn is next comes first

    def submit(self, tenant: str, work: Callable[[], Found]) -> "Future[Found]":
        """It is running once a thread has begun with it."""
        future = Future[Found]()
        self._waiting.setdefault(tenant, deque()).append((future, work))
        self._start()
        return future

    def of(self, tenant: str) -> int:
        """Pieces that wait or are under way."""
        return len(self._waiting.get(tenant, ())) + (tenant in self._busy)

    @property
    def total(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._busy)

    def close(self) -> None:
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free:
            tenant = next((each for each in self._waiting if each not in self._busy), None)
            if tenant is None:
                return
            queue = self._waiting.pop(tenant)
            future, work = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind all others
            self._free -= 1
            self._busy.add(tenant)
            self._threads.submit(self._run, future, work, tenant, loop)

    def _run(
        self,
        future: "Future[Found]",
        work: Callable[[], Found],
        tenant: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """In a thread."""
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._ended, tenant)

    def _ended(self, tenant: str) -> None:
        self._free += 1
        self._busy.discard(tenant)
        self._start()
