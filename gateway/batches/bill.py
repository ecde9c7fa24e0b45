"""The bills of a batch's lines, written with their answers: both are there, or neither is.

They do not go through the usage log: that makes sure that an answer a client has is billed, and
nobody has a line's answer before this transaction. Their transactions are numbered as a log's are,
so that roll-ups count each once.
"""

from collections.abc import Sequence
from datetime import date

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database
from gateway.usage.event import event_of, time_of
from gateway.usage.log import Position
from gateway.usage.pricing import BATCH_TIER, PriceBook
from gateway.usage.record import Finished, Started
from gateway.usage.repository import LedgerRepository

LOG = "batches"  # as the ledger numbers its transactions
START = Position(0, 0)

Used = tuple[Started, Finished]


class Bills:
    """Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prices: tuple[int, PriceBook] = (-1, PriceBook(()))  # how many they are made of
        self._partitions: set[date] = set()

    async def prepare(self, used: Sequence[Used]) -> None:
        """In a transaction of its own, before ``write``: it waits for those who read."""
        days = {time_of(started.at_ns).date() for started, _ in used} - self._partitions
        for day in sorted(days):
            async with self._database.unit_of_work() as session:
                await LedgerRepository(session).ensure_partition(day)
        self._partitions |= days

    async def write(self, session: AsyncSession, used: Sequence[Used]) -> None:
        if not used:
            return
        rows = LedgerRepository(session)
        number = await rows.move(LOG, START)
        count = await rows.price_count()
        if count != self._prices[0]:
            self._prices = count, await rows.price_book()
        closed = await rows.hold_periods()
        events = [
            event_of(
                msgspec.structs.replace(started, tier=BATCH_TIER),
                finished,
                self._prices[1],
                closed=closed,
            )
            for started, finished in used
        ]
        await rows.add_events(events, LOG, number)
