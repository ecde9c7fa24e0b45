"""The settler's queries: events in bulk, log positions, prices, closed periods."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.event import Event
from gateway.usage.log import Position
from gateway.usage.models import ClosedPeriod, DroppedUsage, LogPosition, Price, UsageEvent
from gateway.usage.pricing import PriceBook, Tariff
from gateway.usage.sqlite_rows import day_text, insert_of, moment_text, packed

COLUMNS = Event.__struct_fields__
OPERATOR_LOG = "log_operator"  # the name under which adjustments have their batches
CHUNK = 1000  # ids in one query
PERIODS = 0x10_7B  # Postgres advisory lock: shared to write events, exclusive to close a month

# Values as SQLite keeps them; the driver takes the others as they are.
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("slot", "started_at", "finished_at"), moment_text),
    **dict.fromkeys(("day", "period"), day_text),
}


class LedgerRepository:
    """For the settler and the operator, who see every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._postgres = is_postgres(session)

    async def add_events(self, events: Sequence[Event], log: str = "", batch: int = 0) -> int:
        """All in one statement; those that are there already stay. Returns how many are new.

        Their days must have partitions. ``log`` and ``batch`` are written to each.
        """
        if not events:
            return 0
        columns: list[Sequence[Any]] = list(zip(*map(msgspec.structs.astuple, events), strict=True))
        columns[-2:] = [log] * len(events), [batch] * len(events)
        connection = await self._session.connection()
        if self._postgres:
            result = await connection.exec_driver_sql(_UNNESTED, tuple(map(list, columns)))
        else:
            for name, as_text in _AS_TEXT.items():
                place = COLUMNS.index(name)
                columns[place] = [as_text(value) for value in columns[place]]
            rows = packed(list(zip(*columns, strict=True)))
            result = await connection.exec_driver_sql(_PACKED, (rows,))
        return result.rowcount

    async def of_batch(self, log: str, batch: int) -> set[str]:
        """Requests that this transaction of a log brought."""
        statement = select(UsageEvent.id).where(UsageEvent.log == log, UsageEvent.batch == batch)
        return set(await self._session.scalars(statement))

    async def known(self, requests: Sequence[str]) -> set[str]:
        statement = select(UsageEvent.id).where(UsageEvent.id.in_(requests))
        return set((await self._session.scalars(statement)).all())

    async def charged(self, requests: Sequence[str]) -> list[UsageEvent]:
        """Of these requests, those that are in the ledger."""
        found: list[UsageEvent] = []
        for first in range(0, len(requests), CHUNK):
            some = requests[first : first + CHUNK]
            found += await self._session.scalars(select(UsageEvent).where(UsageEvent.id.in_(some)))
        return found

    async def ensure_partition(self, day: date) -> None:
        """A no-op on SQLite."""
        if self._postgres:
            await self._session.execute(select(func.usage_partition(day)))

    async def position(self, log: str) -> Position:
        row = await self._session.get(LogPosition, log)
        return Position(row.segment, row.offset) if row else Position(0, 0)

    async def move(self, log: str, position: Position) -> int:
        """Returns the number of this transaction among those of the log; it takes turns there."""
        insert = postgresql.insert if self._postgres else sqlite.insert
        made = insert(LogPosition).values(
            log=log, segment=position.segment, offset=position.offset, batch=1
        )
        moved = made.on_conflict_do_update(
            index_elements=["log"],
            set_={
                "segment": made.excluded.segment,
                "offset": made.excluded.offset,
                "batch": LogPosition.batch + 1,
            },
        )
        batch: int = (await self._session.execute(moved.returning(LogPosition.batch))).scalar_one()
        return batch

    async def hold_periods(self) -> frozenset[date]:
        """The closed months. None is closed until this transaction ends."""
        if self._postgres:
            await self._session.execute(select(func.pg_advisory_xact_lock_shared(PERIODS)))
        return frozenset(await self._session.scalars(select(ClosedPeriod.period)))

    async def take_periods(self) -> None:
        """Wait for those who write events, and keep others from it until the end."""
        if self._postgres:
            await self._session.execute(select(func.pg_advisory_xact_lock(PERIODS)))

    async def closed_periods(self) -> Sequence[ClosedPeriod]:
        return (await self._session.scalars(select(ClosedPeriod).order_by("period"))).all()

    async def close_period(self, period: date, now: datetime) -> ClosedPeriod:
        row = ClosedPeriod(period=period, closed_at=now, **await self.period_totals(period))
        self._session.add(row)
        return row

    async def period_totals(self, period: date) -> dict[str, int]:
        """Of events that are there, and of those whose day went."""
        events, gone = UsageEvent, DroppedUsage
        there = select(func.count(), func.sum(events.cost_nano)).where(events.period == period)
        dropped = select(func.sum(gone.events), func.sum(gone.cost_nano)).where(
            gone.period == period
        )
        found = [(await self._session.execute(query)).one() for query in (there, dropped)]
        return {
            name: sum(int(row[place] or 0) for row in found)
            for place, name in enumerate(("events", "cost_nano"))
        }

    async def to_reprice(
        self, start: datetime, end: datetime, *, after: str, most: int
    ) -> Sequence[UsageEvent]:
        """Requests that began in [start, end), in the order of their ids."""
        statement = (
            select(UsageEvent)
            .where(
                UsageEvent.day >= start.astimezone(UTC).date(),
                UsageEvent.day <= end.astimezone(UTC).date() + timedelta(days=1),
                UsageEvent.started_at >= start,
                UsageEvent.started_at < end,
                UsageEvent.kind == "usage",
                UsageEvent.id > after,
            )
            .order_by(UsageEvent.id)
            .limit(most)
        )
        return (await self._session.scalars(statement)).all()

    async def adjustments(self, events: Sequence[str]) -> Sequence[UsageEvent]:
        """Of these events, oldest first."""
        statement = (
            select(UsageEvent).where(UsageEvent.corrects.in_(events)).order_by(UsageEvent.batch)
        )
        return (await self._session.scalars(statement)).all()

    def add_price(self, price: Price) -> None:
        self._session.add(price)

    async def prices(self) -> Sequence[Price]:
        statement = select(Price).order_by(Price.effective_from, Price.id)
        return (await self._session.scalars(statement)).all()

    async def price_count(self) -> int:
        """Prices are only ever added: the same number means the same prices."""
        return (await self._session.execute(select(func.count()).select_from(Price))).scalar_one()

    async def corrections(self) -> int:
        """A number that moves when what was charged, or will be, is corrected."""
        row = await self._session.get(LogPosition, OPERATOR_LOG)
        return await self.price_count() + (row.batch if row else 0)

    async def doubt_counters(self) -> None:
        """Every counter of a budget is read from the ledger again."""
        await self.move(OPERATOR_LOG, Position(0, 0))

    async def price_book(self) -> PriceBook:
        return PriceBook(
            (
                row.adapter_id or row.base_model or "",
                Tariff(
                    id=row.id,
                    effective_from=row.effective_from,
                    input=row.input_pico,
                    cached_input=row.cached_input_pico,
                    output=row.output_pico,
                    tier=row.tier,
                ),
            )
            for row in await self.prices()
        )


def _type_of(name: str) -> str:
    """Of a column, as Postgres calls it."""
    kind = UsageEvent.__table__.columns[name].type.compile(postgresql.dialect())  # type: ignore[no-untyped-call]
    return "text" if kind.startswith("VARCHAR") else kind


_NAMES = ", ".join(COLUMNS)
_ARRAYS = ", ".join(f"${place}::{_type_of(name)}[]" for place, name in enumerate(COLUMNS, 1))
_UNNESTED = (
    f"INSERT INTO usage_event ({_NAMES}) SELECT * FROM unnest({_ARRAYS})"  # noqa: S608
    " ON CONFLICT DO NOTHING"
)
_PACKED = insert_of("usage_event", COLUMNS, "DO NOTHING")
