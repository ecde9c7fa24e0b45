"""Adapters at the engines: brought there, kept there, and no longer used there.

Belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from engine.protocol import AdapterRef
from gateway.fleet.fleet import Fleet

LOOK_S = 1.0  # how often pinned adapters are looked for
POLL_S = 0.05


class Residents:
    def __init__(self, fleet: Fleet, pinned: Callable[[], Collection[AdapterRef]]) -> None:
        """``pinned``: as the snapshot says at the moment."""
        self._fleet, self._pinned = fleet, pinned
        self._running: dict[str, int] = {}  # adapter id -> requests of this gateway

    @contextmanager
    def using(self, adapter_id: str | None) -> Iterator[None]:
        """While a request runs on it."""
        if adapter_id is None:
            yield
            return
        self._running[adapter_id] = self._running.get(adapter_id, 0) + 1
        try:
            yield
        finally:
            self._running[adapter_id] -= 1
            if not self._running[adapter_id]:
                del self._running[adapter_id]

    async def drained(self, adapter_ids: Iterable[str], *, timeout_s: float) -> int:
        """Wait until no request of this gateway uses them; how many still do at the end."""
        ids = list(adapter_ids)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while running := sum(self._running.get(each, 0) for each in ids):
            if asyncio.get_running_loop().time() >= deadline:
                return running
            await asyncio.sleep(POLL_S)
        return 0

    def prefetch(self, digest: str, rank: int) -> int:
        """Ask every reachable engine; how many were asked."""
        asked = 0
        for member in self._fleet.ready:
            if (client := member.client) is not None:
                client.prefetch(AdapterRef(digest, rank))
                asked += 1
        return asked

    async def keep(self) -> None:
        """For ever: bring pinned adapters back wherever they were evicted."""
        while True:
            await asyncio.sleep(LOOK_S)
            for adapter in self._pinned():
                for member in self._fleet.ready:
                    client = member.client
                    if client is not None and adapter.digest not in member.resident:
                        client.prefetch(adapter)
