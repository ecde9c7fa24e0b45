"""Queries over usage events, prices and log positions."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import TenantRepository
from gateway.usage.log import Position
from gateway.usage.models import LogPosition, Price, UsageEvent
from gateway.usage.pricing import PriceBook, Tariff


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """One model of one project."""

    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int
    unpriced: int  # requests that have no price, and so no cost


class UsageRepository(TenantRepository[UsageEvent]):
    rows = UsageEvent

    async def totals(self) -> list[UsageTotal]:
        events = self.mine().subquery()
        found = await self._session.execute(
            select(
                events.c.model,
                func.count(),
                func.sum(events.c.prompt_tokens),
                func.sum(events.c.cached_tokens),
                func.sum(events.c.completion_tokens),
                func.coalesce(func.sum(events.c.cost_nano), 0),
                func.count() - func.count(events.c.price_id),
            )
            .group_by(events.c.model)
            .order_by(events.c.model)
        )
        return [
            UsageTotal(
                model=model,
                requests=requests,
                prompt_tokens=int(prompt),
                cached_tokens=int(cached),
                completion_tokens=int(completion),
                cost_nano=int(cost),
                unpriced=unpriced,
            )
            for model, requests, prompt, cached, completion, cost, unpriced in found
        ]


class LedgerRepository:
    """For the settler and the operator, who see every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add_events(self, events: Sequence[UsageEvent]) -> None:
        """Those that are there already stay as they are."""
        if not events:
            return
        columns = UsageEvent.__table__.columns.keys()
        rows = [{name: getattr(event, name) for name in columns} for event in events]
        if self._session.get_bind().dialect.name == "postgresql":
            statement = postgresql.insert(UsageEvent).on_conflict_do_nothing()
            await self._session.execute(statement, rows)
        else:
            await self._session.execute(sqlite.insert(UsageEvent).on_conflict_do_nothing(), rows)

    async def known(self, requests: Sequence[str]) -> set[str]:
        statement = select(UsageEvent.id).where(UsageEvent.id.in_(requests))
        return set((await self._session.scalars(statement)).all())

    async def position(self, log: str) -> Position:
        row = await self._session.get(LogPosition, log)
        return Position(row.segment, row.offset) if row else Position(0, 0)

    async def move(self, log: str, position: Position) -> None:
        row = await self._session.get(LogPosition, log, with_for_update=True)
        if row is None:
            row = LogPosition(log=log, segment=0, offset=0)
            self._session.add(row)
        row.segment, row.offset = position.segment, position.offset

    def add_price(self, price: Price) -> None:
        self._session.add(price)

    async def prices(self) -> Sequence[Price]:
        statement = select(Price).order_by(Price.effective_from, Price.id)
        return (await self._session.scalars(statement)).all()

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
                ),
            )
            for row in await self.prices()
        )
