"""Brings what was refused to the database beside the requests, and lets it go in time.

No request waits for this, and it is no part of the books: what a gateway that is killed had not
written is lost, and what does not fit into memory while the database is away is dropped and
counted in the log. Rows stay for ``KEPT_DAYS`` at most, and of a project ``MOST_ROWS``.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.refusals.repository import KeepingRepository
from gateway.refusals.tally import Tally

FLUSH_S = 1.0
SWEEP_S = 60.0
AT_ONCE = 500
KEPT_DAYS = 30
MOST_ROWS = 10_000  # of one project

log = logging.getLogger(__name__)


class RefusalKeeper:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        tally: Tally,
        *,
        days: int | None = None,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """``days`` that requests are kept; refusals are not kept for longer."""
        self._database, self.tally = database, tally
        self._days = min(KEPT_DAYS, days or KEPT_DAYS)
        self._most_rows = most_rows
        self._grown: set[str] = set()  # projects, since the last sweep

    async def run(self) -> None:
        """For ever."""
        swept = float("-inf")
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self.flush()
                if clock() - swept >= SWEEP_S:
                    await self.sweep()
                    swept = clock()
            except (DatabaseUnavailable, Conflict) as error:
                log.info("refusals wait in memory: %s", error)
            await asyncio.sleep(FLUSH_S)

    async def flush(self) -> None:
        """What waits is in the database, or waits again if that raises."""
        if self.tally.dropped:
            log.warning("%d refusals were not kept: too many waited", self.tally.dropped)
            self.tally.dropped = 0
        counted = self.tally.take()
        while counted:
            some = counted[:AT_ONCE]
            try:
                async with self._database.unit_of_work() as session:
                    await KeepingRepository(session).add(some)
            except BaseException:
                self.tally.give_back(counted)
                raise
            self._grown |= {kind.project for kind, _ in some}
            counted = counted[len(some) :]

    async def close(self) -> None:
        """What is left; a database that is away does not hold anybody up."""
        with contextlib.suppress(DatabaseUnavailable, Conflict):
            await self.flush()

    async def sweep(self, now: datetime | None = None) -> int:
        """Returns how many rows went."""
        before, gone = (now or datetime.now(UTC)) - timedelta(days=self._days), 0
        while went := await self._forget(before):
            gone += went
        for project in sorted(self._grown):
            while went := await self._trim(project):
                gone += went
            self._grown.discard(project)
        return gone

    async def _forget(self, before: datetime) -> int:
        async with self._database.unit_of_work() as session:
            return await KeepingRepository(session).forget(before, AT_ONCE)

    async def _trim(self, project: str) -> int:
        async with self._database.unit_of_work() as session:
            return await KeepingRepository(session).trim(project, self._most_rows, AT_ONCE)
