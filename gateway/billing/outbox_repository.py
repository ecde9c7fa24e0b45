"""Deliveries: what of the ledger is to be written down, what is due, and what became of it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.billing.models import SinkCustomer, SinkDelivery, SinkWatermark
from gateway.billing.sink import Usage
from gateway.db import is_postgres
from gateway.usage.charge_repository import charged_share
from gateway.usage.models import LogPosition, UsageEvent

FREEZING = 0x10_7D  # Postgres advisory lock: one writes deliveries at a time
KNOWN = ""  # the log of a sink's first watermark
HOUR = timedelta(hours=1)
COST = "cost_nano_usd"
TOKENS = {  # as a sink calls it -> as charges do
    "requests": "requests",
    "input_tokens": "input_tokens",
    "cached_input_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
}
METERS = (*TOKENS, COST)


class OutboxRepository:
    """For the gateway, which sees every tenant. Of one sink."""

    def __init__(self, session: AsyncSession, sink: str) -> None:
        self._session, self._sink = session, sink
        self._postgres = is_postgres(session)

    async def take_turn(self) -> bool:
        """Whether nobody else writes deliveries, until the transaction ends."""
        if not self._postgres:  # its only writer
            return True
        lock = select(func.pg_try_advisory_xact_lock(FREEZING))
        return bool((await self._session.execute(lock)).scalar_one())

    async def behind(self) -> list[tuple[str, int, int]]:
        """(log, batch that is written down, last batch). A sink's first time: nothing is."""
        positions = (await self._session.execute(select(LogPosition.log, LogPosition.batch))).all()
        marks = select(SinkWatermark).where(SinkWatermark.sink == self._sink)
        done = {row.log: row.batch for row in await self._session.scalars(marks)}
        if KNOWN not in done:
            for log, batch in [(KNOWN, 0), *positions]:
                await self.move(log, batch)
            return []
        return [
            (log, done.get(log, 0), batch) for log, batch in positions if batch > done.get(log, 0)
        ]

    async def usage(self, log: str, after: int, last: int) -> list[Usage]:
        event = UsageEvent
        adapter = func.coalesce(event.adapter_id, "")
        owner: list[Any] = [event.organisation_id, event.project_id]
        keys = [*owner, event.base_model, adapter, event.slot]
        tokens = [charged_share(name) for name in TOKENS.values()]
        sums: list[Any] = [func.sum(share) for share in (*tokens, event.cost_nano)]
        statement = (
            select(*keys, *sums)
            .where(event.log == log, event.batch > after, event.batch <= last)
            .group_by(*keys)
            .order_by(*keys)
        )
        return [
            Usage(
                organisation_id=row[0],
                project_id=row[1],
                base_model=row[2],
                adapter_id=row[3],
                at=row[4],
                sums={n: int(v or 0) for n, v in zip(METERS, row[len(keys) :], strict=True)},
            )
            for row in await self._session.execute(statement)
        ]

    async def move(self, log: str, batch: int) -> None:
        insert = postgresql.insert if self._postgres else sqlite.insert
        made = insert(SinkWatermark).values(sink=self._sink, log=log, batch=batch)
        await self._session.execute(
            made.on_conflict_do_update(index_elements=["sink", "log"], set_={"batch": batch})
        )

    async def customers(self) -> dict[str, str]:
        statement = select(SinkCustomer).where(SinkCustomer.sink == self._sink)
        return {row.organisation_id: row.customer for row in await self._session.scalars(statement)}

    def add(self, row: SinkDelivery | SinkCustomer) -> None:
        self._session.add(row)

    async def held(self, most: int) -> Sequence[SinkDelivery]:
        """Whose organisation has a name there by now."""
        statement = (
            self._mine("held")
            .join(
                SinkCustomer,
                (SinkCustomer.sink == SinkDelivery.sink)
                & (SinkCustomer.organisation_id == SinkDelivery.organisation_id),
            )
            .order_by(SinkDelivery.id)
            .limit(most)
        )
        return (await self._session.scalars(statement)).all()

    async def due(self, state: str, now: datetime, most: int) -> Sequence[SinkDelivery]:
        statement = (
            self._mine(state)
            .where(SinkDelivery.next_at <= now)
            .order_by(SinkDelivery.next_at, SinkDelivery.id)
            .limit(most)
        )
        return (await self._session.scalars(statement)).all()

    async def beside(self, delivery: SinkDelivery) -> Sequence[SinkDelivery]:
        """What else may have been counted by the same meter, for the same customer and hour."""
        statement = select(SinkDelivery).where(
            SinkDelivery.sink == self._sink,
            SinkDelivery.meter == delivery.meter,
            SinkDelivery.customer == delivery.customer,
            SinkDelivery.at >= delivery.at,
            SinkDelivery.at < delivery.at + HOUR,
            SinkDelivery.id != delivery.id,
            SinkDelivery.taken_at.is_not(None) | SinkDelivery.doubt_since.is_not(None),
        )
        return (await self._session.scalars(statement)).all()

    async def change(self, delivery: SinkDelivery, **values: Any) -> bool:
        """False: somebody else was quicker."""
        statement = update(SinkDelivery).where(
            SinkDelivery.id == delivery.id,
            SinkDelivery.state == delivery.state,
            SinkDelivery.attempts == delivery.attempts,
        )
        done: Any = await self._session.execute(
            statement.values(**values), execution_options={"synchronize_session": False}
        )
        return bool(done.rowcount)

    async def settle(self, delivery: str, attempts: int, values: dict[str, Any]) -> None:
        """Of that attempt; a later one has the word."""
        statement = update(SinkDelivery).where(
            SinkDelivery.id == delivery,
            SinkDelivery.attempts == attempts,
            SinkDelivery.state == "pending",
        )
        await self._session.execute(
            statement.values(**values), execution_options={"synchronize_session": False}
        )

    async def counts(self) -> dict[str, tuple[int, int]]:
        """By state: deliveries, and what they add up to."""
        statement = (
            select(SinkDelivery.state, func.count(), func.sum(SinkDelivery.quantity))
            .where(SinkDelivery.sink == self._sink)
            .group_by(SinkDelivery.state)
        )
        rows = (await self._session.execute(statement)).all()
        return {state: (count, int(quantity)) for state, count, quantity in rows}

    def _mine(self, state: str) -> Any:
        return select(SinkDelivery).where(
            SinkDelivery.sink == self._sink, SinkDelivery.state == state
        )
