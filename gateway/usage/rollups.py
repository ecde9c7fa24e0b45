"""Keeps the roll-ups going: what the ledger gained is added to its quarter of an hour, once.

The watermark counts transactions of a log, not time, so an event that comes late, or twice, or
from a clock that stepped back, is added like any other. Roll-up and watermark move together.
Whatever is not added yet is read from the events themselves: reports never wait for this.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.usage.repository import LedgerRepository
from gateway.usage.rollup_repository import RollupRepository

log = logging.getLogger(__name__)

PARTITIONS_AHEAD_DAYS = 14


def now_utc() -> datetime:
    return datetime.now(UTC)


class Rollups:
    """Belongs to one event loop. Any number of gateways may run it."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = now_utc) -> None:
        self._database = database
        self._clock = clock

    async def roll_up(self) -> int:
        """Add what is behind. Returns how many batches; 0 also while another gateway does it."""
        done = 0
        async with self._database.unit_of_work() as session:
            rows = RollupRepository(session)
            if await rows.take_turn():
                for behind in await rows.behind():
                    await rows.roll_up(behind)
                    done += behind.batch - behind.rolled
        return done

    async def prepare_days(self) -> None:
        """Partitions for today and two weeks, so that no event waits for its own."""
        today = self._clock().date()
        for ahead in range(PARTITIONS_AHEAD_DAYS + 1):
            async with self._database.unit_of_work() as session:
                await LedgerRepository(session).ensure_partition(today + timedelta(days=ahead))

    async def run(self, interval_s: float) -> None:
        """For ever; while the database is away there is nothing to do."""
        prepared = None
        while True:
            try:
                if prepared != (today := self._clock().date()):
                    await self.prepare_days()
                    prepared = today
                await self.roll_up()
            except (DatabaseUnavailable, Conflict) as error:
                log.info("roll-ups wait: %s", error)
            await asyncio.sleep(interval_s)
