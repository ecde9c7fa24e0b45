"""The right of this gateway to work on one batch, held by beating while it does.

Whoever loses it finds out at the next write at the latest: a write under an older fence changes
nothing. Gateways' clocks may differ by less than HELD_FOR less BEAT_S.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.background import to_the_end
from gateway.batches.models import Batch, BatchState
from gateway.batches.repository import NOTHING, Progress, Tenure, WorkRepository
from gateway.db import Database, DatabaseUnavailable

HELD_FOR = timedelta(seconds=20)
BEAT_S = 2.0

Change = Callable[[AsyncSession, Batch], Awaitable[Batch]]

log = logging.getLogger(__name__)


class CustodyLost(Exception):
    """Another gateway works on this batch."""


class Custody:
    """Belongs to one event loop. ``stop`` is set once no further line is to be begun."""

    def __init__(
        self, database: Database, tenure: Tenure, *, clock: Callable[[], datetime]
    ) -> None:
        self._database, self._tenure, self._clock = database, tenure, clock
        self.stop = asyncio.Event()

    @property
    def batch(self) -> str:
        return self._tenure.batch

    async def write(self, change: Change | None = None) -> Batch:
        """One transaction in which the batch is ours, not cut where we are stopped.

        ``change`` gets it as it is, and returns it as it has become. Raises CustodyLost.
        """
        return await to_the_end(self._write(change))

    async def _write(self, change: Change | None) -> Batch:
        async with self._database.unit_of_work() as session:
            row = await self.held(session)
            return row if change is None else await change(session, row)

    async def held(
        self, session: AsyncSession, progress: Progress = NOTHING, **values: Any
    ) -> Batch:
        """Within a transaction. Raises CustodyLost."""
        row = await WorkRepository(session).hold(
            self._tenure, progress, held_until=self._clock() + HELD_FOR, **values
        )
        if row is None:
            raise CustodyLost(self.batch)
        if row.state == BatchState.CANCELLING or row.expires_at <= self._clock():
            self.stop.set()
        return row

    async def beat(self) -> None:
        """For ever. Raises CustodyLost."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.write()
            except DatabaseUnavailable as error:
                log.info("batch %s is not held: %s", self.batch, error)

    async def let_go(self) -> None:
        """Whoever wants may go on with it."""
        await to_the_end(self._let_go())

    async def _let_go(self) -> None:
        async with self._database.unit_of_work() as session:
            await WorkRepository(session).hold(self._tenure, NOTHING, held_until=self._clock())
