"""Adapters at the engines: brought there, kept there, and no longer used there.

A version that was retired with a deadline ends what still runs on it then; engines give back what
no version names any more. Belongs to one event loop.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from engine.protocol import AdapterRef
from gateway.fleet.fleet import Fleet

LOOK_S = 0.25  # how often pinned adapters and deadlines are looked at
POLL_S = 0.05


class Wanted(Protocol):
    """What the snapshot says at the moment."""

    @property
    def pinned(self) -> Collection[tuple[str, AdapterRef]]:
        """Bases' names, and what is to be kept close to their engines."""

    @property
    def digests(self) -> Collection[str]:
        """Of every version that may be asked for."""

    @property
    def ends(self) -> Mapping[str, float]:
        """Retired adapters' ids, and when what runs on them ends, in unix seconds."""


class Residents:
    def __init__(
        self, fleet: Fleet, wanted: Wanted, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._fleet, self._wanted, self._clock = fleet, wanted, clock
        self._running: dict[str, int] = {}  # adapter id -> requests of this gateway
        self._limits: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)

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

    @contextmanager
    def limiting(self, adapter_id: str | None, limit: asyncio.Timeout) -> Iterator[None]:
        """Inside, ``limit``, which has been entered, is set to when the adapter ends."""
        if adapter_id is None:
            yield
            return
        self._limits[adapter_id].add(limit)
        try:
            self._limit(adapter_id)
            yield
        finally:
            self._limits[adapter_id].discard(limit)
            if not self._limits[adapter_id]:
                del self._limits[adapter_id]

    async def drained(self, adapter_ids: Iterable[str], *, timeout_s: float) -> int:
        """Wait until no request of this gateway uses them; how many still do at the end."""
        ids = list(adapter_ids)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while running := sum(self._running.get(each, 0) for each in ids):
            if asyncio.get_running_loop().time() >= deadline:
                return running
            await asyncio.sleep(POLL_S)
        return 0

    def prefetch(self, base: str, adapter: AdapterRef) -> int:
        """Ask every reachable engine of a base; how many were asked."""
        asked = 0
        for member in self._fleet.of(base).ready:
            if (client := member.client) is not None:
                client.prefetch(adapter)
                asked += 1
        return asked

    async def keep(self) -> None:
        """For ever: bring pinned adapters back, let go of retired ones, end what is over."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._bring()
            self._let_go()
            for adapter_id in list(self._limits):
                self._limit(adapter_id)

    def _bring(self) -> None:
        for base, adapter in self._wanted.pinned:
            for member in self._fleet.of(base).ready:
                client = member.client
                if client is not None and adapter.digest not in member.resident:
                    client.prefetch(adapter)

    def _let_go(self) -> None:
        digests = self._wanted.digests
        for member in self._fleet.ready:
            for digest in member.resident:
                if digest not in digests and (client := member.client) is not None:
                    client.retire(digest)

    def _limit(self, adapter_id: str) -> None:
        ends = self._wanted.ends.get(adapter_id)
        if ends is None:
            return
        when = asyncio.get_running_loop().time() + ends - self._clock()
        for limit in self._limits[adapter_id]:
            if not limit.expired():
                limit.reschedule(when)
