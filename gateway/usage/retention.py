"""Lets old days of the ledger go, whole: a partition is dropped, never deleted from.

Only days whose month is closed and which are in the roll-ups, so reports and bills stay as they
are; what each day held is kept in sums, against which ``reconcile`` goes on proving them, and so
are its charges, from which a month is exported again.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.usage.charge_repository import ChargeRepository
from gateway.usage.repository import LedgerRepository
from gateway.usage.retention_repository import RetentionRepository
from gateway.usage.rollup_repository import RollupRepository

log = logging.getLogger(__name__)

LOOK_S = 3600.0


class Retention:
    """Belongs to one event loop. Any number of gateways may run it."""

    def __init__(
        self,
        database: Database,
        keep_days: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._keep = timedelta(days=keep_days)
        self._now = now

    async def drop(self) -> list[date]:
        """What may go, oldest first, each day by itself. Returns the days that went."""
        first_kept = (self._now() - self._keep).date()
        async with self._database.reading() as session:
            days = await RetentionRepository(session).days_before(first_kept)
        gone = []
        for day in days:
            if not await self._drop(day):
                break  # later ones wait for it: what is kept has no gaps
            gone.append(day)
        return gone

    async def run(self) -> None:
        """For ever; while the database is away nothing goes."""
        while True:
            try:
                if gone := await self.drop():
                    log.info("%d days of the ledger are old enough and went", len(gone))
            except (DatabaseUnavailable, Conflict) as error:
                log.info("old days of the ledger stay for now: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _drop(self, day: date) -> bool:
        async with self._database.unit_of_work() as session:
            if not await RollupRepository(session).take_turn():
                return False
            await LedgerRepository(session).take_periods()  # nobody writes events meanwhile
            rows = RetentionRepository(session)
            settled = await rows.is_settled(day)
            if settled:
                await ChargeRepository(session).keep(day)
                await rows.drop(day, self._now())
            return settled
