"""A day's charges: from its events, or what was kept of them when they went."""

from collections.abc import Iterator, Sequence
from datetime import date
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from gateway.db import is_postgres
from gateway.usage.charges import (
    KEYS,
    NOTHING,
    SUMS,
    Charged,
    ChargeKey,
    Charges,
    ChargeSums,
    adjusted,
)
from gateway.usage.models import DroppedCharge, DroppedUsage, UsageEvent
from gateway.usage.pricing import billable
from gateway.usage.record import Outcome
from gateway.usage.retention_repository import RetentionRepository

PAGE = 2000  # adjustments in one query


class ChargeRepository:
    """For the operator, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def days(self, before: date) -> Sequence[date]:
        """Those that may hold charges, oldest first; days whose events went are among them."""
        gone = await self._session.scalars(select(DroppedUsage.day).distinct())
        kept = await RetentionRepository(self._session).days_before(before)
        return sorted({*kept, *(day for day in gone if day < before)})

    async def of_day(self, day: date) -> Charges:
        """Of every period that it was billed in."""
        charges = await self._kept(day)
        for key, sums in (await self.held(day)).items():
            charges[key] = charges.get(key, NOTHING) + sums
        return charges

    async def held(self, day: date) -> Charges:
        """By the events that are there."""
        keys = [_key(UsageEvent, name).label(name) for name in KEYS]
        sums = [func.sum(charged_share(name)) for name in SUMS]
        statement = (
            select(*keys, *sums)
            .where(UsageEvent.day == day, UsageEvent.kind != "adjustment")
            .group_by(*keys)
        )
        charges = {
            _parsed_key(row): _parsed_sums(row[len(KEYS) :])
            for row in await self._session.execute(statement)
        }
        after = ""
        while page := await self._adjustments(day, after):
            charges = adjusted(charges, _histories(page))
            after = page[-1][0].corrects
        return charges

    async def keep(self, day: date) -> None:
        """Before its events go."""
        insert = postgresql.insert if is_postgres(self._session) else sqlite.insert
        for key, sums in (await self.held(day)).items():
            values = {name: getattr(key, name) for name in KEYS}
            made = insert(DroppedCharge).values(
                **values, **{name: getattr(sums, name) for name in SUMS}
            )
            added = {name: getattr(DroppedCharge, name) + made.excluded[name] for name in SUMS}
            await self._session.execute(
                made.on_conflict_do_update(
                    index_elements=[name for name in KEYS if name != "organisation_id"], set_=added
                )
            )

    async def total(
        self, day: date, period: date, organisation: str | None = None
    ) -> tuple[int, int]:
        """Events and nano-dollars that the ledger has. ``organisation``: None is everybody.

        Of a day that went, an organisation has its charges alone.
        """
        event, gone = UsageEvent, DroppedUsage
        here = select(func.count(event.id), func.sum(event.cost_nano)).where(
            event.day == day, event.period == period
        )
        dropped = select(func.sum(gone.events), func.sum(gone.cost_nano)).where(
            gone.day == day, gone.period == period
        )
        if organisation is not None:
            here = here.where(event.organisation_id == organisation)
            kept = DroppedCharge
            cost = kept.input_nano + kept.cached_nano + kept.output_nano + kept.storage_nano
            dropped = select(func.sum(kept.requests), func.sum(cost)).where(
                kept.day == day, kept.period == period, kept.organisation_id == organisation
            )
        found = [(await self._session.execute(query)).one() for query in (here, dropped)]
        events, nano = (sum(int(row[place] or 0) for row in found) for place in (0, 1))
        return events, nano

    async def _kept(self, day: date) -> Charges:
        rows = await self._session.scalars(select(DroppedCharge).where(DroppedCharge.day == day))
        return {
            ChargeKey(**{name: getattr(row, name) for name in KEYS}): ChargeSums(
                **{name: getattr(row, name) for name in SUMS}
            )
            for row in rows
        }

    async def _adjustments(self, day: date, after: str) -> Sequence[Any]:
        """Of whole requests, in the order of their ids, each request's oldest first."""
        first, change = aliased(UsageEvent), aliased(UsageEvent)
        some = (
            select(change.corrects)
            .where(change.day == day, change.kind == "adjustment", change.corrects > after)
            .distinct()
            .order_by(change.corrects)
            .limit(PAGE)
        )
        statement = (
            select(change, first)
            .join(first, and_(first.id == change.corrects, first.day == change.day))
            .where(change.day == day, change.corrects.in_(some.scalar_subquery()))
            .order_by(change.corrects, change.batch)
        )
        return (await self._session.execute(statement)).all()


def _key(table: Any, name: str) -> ColumnElement[Any]:
    column: ColumnElement[Any] = getattr(table, name)
    return func.coalesce(column, "") if name in ("adapter_id", "price_id") else column


def charged_share(name: str) -> ColumnElement[Any]:
    """What one event adds to a sum: the tokens that are charged, see ``pricing.billable``."""
    event = UsageEvent
    free = and_(
        event.completion_tokens == 0,
        event.outcome.in_((Outcome.FAILED.value, Outcome.ENGINE_LOST.value)),
    )
    tokens = {
        "input_tokens": event.prompt_tokens - event.cached_tokens,
        "cached_tokens": event.cached_tokens,
        "output_tokens": event.completion_tokens,
    }
    if name == "requests":
        return case((event.kind == "usage", 1), else_=0)
    if name in tokens:
        return case((free, 0), else_=tokens[name])
    column: ColumnElement[Any] = getattr(event, name)
    return column


def _histories(page: Sequence[Any]) -> Iterator[Charged]:
    """``page``: rows of (an adjustment, the request it is about)."""
    for _, rows in groupby(page, key=lambda row: row[0].corrects):
        changes = list(rows)
        yield Charged(_sums_of(changes[0][1]), tuple(_moved(change) for change, _ in changes))


def _moved(change: UsageEvent) -> tuple[ChargeKey, ChargeKey, ChargeSums]:
    values: dict[str, Any] = {name: getattr(change, name) or "" for name in KEYS}
    wrong = ChargeKey(**values | {"price_id": change.corrected_price or ""})
    difference = ChargeSums(
        input_nano=change.input_nano, cached_nano=change.cached_nano, output_nano=change.output_nano
    )
    return wrong, ChargeKey(**values), difference


def _sums_of(request: UsageEvent) -> ChargeSums:
    tokens = billable(
        Outcome(request.outcome),
        prompt=request.prompt_tokens,
        cached=request.cached_tokens,
        completion=request.completion_tokens,
    )
    return ChargeSums(
        requests=1,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached_input,
        output_tokens=tokens.output,
        input_nano=request.input_nano,
        cached_nano=request.cached_nano,
        output_nano=request.output_nano,
    )


def _parsed_key(row: Any) -> ChargeKey:
    return ChargeKey(**dict(zip(KEYS, row, strict=False)))


def _parsed_sums(values: Sequence[Any]) -> ChargeSums:
    return ChargeSums(**{name: int(value or 0) for name, value in zip(SUMS, values, strict=True)})
