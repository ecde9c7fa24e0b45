"""Keeps as many engines on a Ray cluster as their queues need.

Engines register themselves where gateways look (``--register``), so gateways need not know of Ray.
Belongs to one event loop; what asks Ray (``placement.py``) runs in a thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.client import EngineClient
from engine.on_ray.scaling import Busy, Scaling
from engine.stream import EngineLost

LOOK_S = 1.0
START_S = 600.0  # until an engine answers: a large checkpoint takes its time
DRAIN_S = 60.0

log = logging.getLogger(__name__)


class NoRoom(Exception):
    """No node has what an engine needs."""


class Placed(Protocol):
    """An engine that was started somewhere. Its methods may take seconds."""

    @property
    def address(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    def drain(self) -> None: ...
    def remove(self) -> None: ...


@dataclass(slots=True, eq=False)
class Kept:
    placed: Placed
    since: float
    client: EngineClient | None = None
    leaving_since: float | None = None

    @property
    def busy(self) -> Busy | None:
        """None until it has told."""
        client = self.client
        if client is None or client.lost is not None or client.load is None:
            return None
        return Busy(client.load.running + client.load.waiting, client.welcome.seats)


class Engines:
    def __init__(
        self,
        start: Callable[[], Placed],
        scaling: Scaling,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``start`` may take as long as a new node does to come up. Raises NoRoom."""
        self._start, self._scaling, self._clock = start, scaling, clock
        self._beginning: set[asyncio.Task[None]] = set()
        self.kept: list[Kept] = []

    async def run(self) -> None:
        """Until cancelled; then every engine is drained."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await asyncio.shield(self._end())

    async def look(self) -> None:
        """One round: who is gone, who answers, and whether there are enough."""
        await asyncio.gather(*(self._visit(each) for each in list(self.kept)))
        staying = [each for each in self.kept if each.leaving_since is None]
        told = [busy for each in staying if (busy := each.busy) is not None]
        have = len(staying) + len(self._beginning)
        wanted = self._scaling.wanted(told, have - len(told), self._clock())
        for _ in range(wanted - have):
            task = asyncio.create_task(self._begin())
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        for each in sorted(staying, key=_open)[: max(have - wanted, 0)]:
            self._leave(each)

    async def _begin(self) -> None:
        try:
            placed = await asyncio.to_thread(self._start)
        except NoRoom as error:
            log.warning("no engine is added: %s", error)
            return
        log.info("engine %s starts", placed.address)
        self.kept.append(Kept(placed, self._clock()))

    def _leave(self, each: Kept) -> None:
        log.info("engine %s is not needed and drains", each.placed.address)
        each.leaving_since = self._clock()
        each.placed.drain()

    async def _visit(self, each: Kept) -> None:
        now = self._clock()
        late = each.leaving_since is not None and now - each.leaving_since > DRAIN_S
        if late or not await asyncio.to_thread(lambda: each.placed.alive):
            if each.leaving_since is None:
                log.warning("engine %s is gone", each.placed.address)
            await self._remove(each)
            return
        if each.client is None or each.client.lost is not None:
            try:
                each.client = await EngineClient.connect(
                    each.placed.address, gateway="ray", timeout_s=LOOK_S
                )
            except EngineLost as error:
                if each.client is None and now - each.since > START_S:
                    log.warning("engine %s never answered: %s", each.placed.address, error)
                    await self._remove(each)

    async def _remove(self, each: Kept) -> None:
        self.kept.remove(each)
        if each.client is not None:
            await each.client.close()
        await asyncio.to_thread(each.placed.remove)

    async def _end(self) -> None:
        if self._beginning:
            await asyncio.wait(self._beginning)
        for each in self.kept:
            if each.leaving_since is None:
                self._leave(each)
        while self.kept:
            await asyncio.gather(*(self._visit(each) for each in list(self.kept)))
            await asyncio.sleep(0.1)


def _open(each: Kept) -> tuple[bool, int]:
    """Who has told nothing yet goes first, then who has least to finish."""
    busy = each.busy
    return busy is not None, busy.open if busy else 0
