"""Takes batches that nobody works on, and works on them: some at once, their lines in turn.

Of several gateways one has a batch. It names itself by its usage log, so that after a crash it has
its own batches back at once; those of a gateway that stays away are free when its custody has
run out. Belongs to one event loop.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence

from gateway.background import to_the_end
from gateway.batches.custody import HELD_FOR, Custody, CustodyLost
from gateway.batches.repository import Tenure, WorkRepository
from gateway.batches.work import Tools, Work
from gateway.db import DatabaseUnavailable
from gateway.errors import Conflict
from gateway.metrics import Metrics

POLL_S = 1.0
MOST_AT_ONCE = 32  # batches of one gateway
MOST_OF_ONE = 8  # of them, those of one project: its limits may make them wait for hours
LOOKED_AT = 200  # free ones, to find those of projects that have none running
AGAIN_S = 30.0  # until a batch that failed here is tried again

log = logging.getLogger(__name__)


class Runner:
    def __init__(self, tools: Tools, metrics: Metrics, *, owner: str) -> None:
        self._do, self._metrics, self._owner = tools, metrics, owner
        self._running: dict[str, str] = {}  # batch -> project
        self._not_before: dict[str, float] = {}  # batch -> monotonic
        self._hint = asyncio.Event()

    def hint(self) -> None:
        """There may be something to do: look now, not at the next poll."""
        self._hint.set()

    async def run(self) -> None:
        """For ever."""
        reachable = True
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    await self._take_some(group)
                    reachable = True
                except (DatabaseUnavailable, Conflict) as error:
                    if reachable:
                        log.warning("batches wait: %s", error)
                    reachable = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._hint.wait()
                self._hint.clear()

    async def _take_some(self, group: asyncio.TaskGroup) -> None:
        if len(self._running) >= MOST_AT_ONCE:
            return
        async with self._do.database.reading() as session:
            rows = WorkRepository(session)
            free = await rows.free(self._owner, self._do.clock(), LOOKED_AT)
        for batch, project in self._in_turn(free):
            if len(self._running) < MOST_AT_ONCE and (
                tenure := await to_the_end(self._take(batch))
            ):
                self._running[batch] = project
                self._metrics.batches.set(len(self._running))
                group.create_task(self._work(tenure), name=f"batch {batch}")

    def _in_turn(self, free: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Projects that have none running go first; of one project, the oldest."""
        running, turn = Counter(self._running.values()), list[tuple[int, int, str, str]]()
        now = time.monotonic()
        for place, (batch, project) in enumerate(free):
            due = self._not_before.get(batch, 0.0) <= now
            if batch not in self._running and due and running[project] < MOST_OF_ONE:
                turn.append((running[project], place, batch, project))
                running[project] += 1
        return [(batch, project) for _, _, batch, project in sorted(turn)]

    async def _take(self, batch: str) -> Tenure | None:
        now = self._do.clock()
        async with self._do.database.unit_of_work() as session:
            return await WorkRepository(session).take(batch, self._owner, now, now + HELD_FOR)

    async def _work(self, tenure: Tenure) -> None:
        """One batch to its end, or until it cannot go on here. Never raises but when cancelled."""
        custody = Custody(self._do.database, tenure, clock=self._do.clock)
        try:
            await Work(self._do, custody).run()
            self._not_before.pop(tenure.batch, None)
        except* CustodyLost:
            log.warning("batch %s was taken over by another gateway", tenure.batch)
        except* (DatabaseUnavailable, Conflict, OSError) as errors:
            self._postpone(tenure)
            log.warning("batch %s waits: %s", tenure.batch, errors.exceptions[0])
        except* Exception as errors:
            self._postpone(tenure)
            self._metrics.faults.total += 1
            log.exception("unexpected error in batch %s", tenure.batch, exc_info=errors)
        finally:
            self._running.pop(tenure.batch, None)
            self._metrics.batches.set(len(self._running))
            with contextlib.suppress(DatabaseUnavailable, Conflict):
                await custody.let_go()
            self._hint.set()

    def _postpone(self, tenure: Tenure) -> None:
        self._not_before[tenure.batch] = time.monotonic() + AGAIN_S
