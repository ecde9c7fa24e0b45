"""Adding events up by quarter of an hour, and finding those not yet added."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.models import LogPosition, RollupWatermark, UsageEvent, UsageRollup

ROLLING = 0x10_7C  # Postgres advisory lock: one adds up at a time

KEYS = (
    "slot",
    "project_id",
    "period",
    "key_id",
    "user_id",
    "tier",
    "model",
    "base_model",
    "adapter_id",
    "endpoint",
    "price_id",
)
SUMS = (
    "events",
    "requests",
    "unpriced",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "storage_byte_hours",
    "input_nano",
    "cached_nano",
    "output_nano",
    "storage_nano",
)


@dataclass(frozen=True, slots=True)
class Behind:
    """A log with batches that are not in the roll-ups: those after ``rolled``."""

    log: str
    rolled: int
    batch: int


def key_of(name: str) -> ColumnElement[Any]:
    """A key column of the roll-ups, of an event."""
    column: ColumnElement[Any] = getattr(UsageEvent, name)
    return func.coalesce(column, "") if name in ("adapter_id", "price_id") else column


def share_of(name: str) -> ColumnElement[Any]:
    """What one event adds to a sum. An adjustment that prices an unpriced request takes it off."""
    event = UsageEvent
    match name:
        case "events":
            return case((event.id.is_not(None), 1), else_=0)
        case "requests":
            return case((event.kind == "usage", 1), else_=0)
        case "unpriced":
            priced_late = and_(event.kind == "adjustment", event.corrected_price.is_(None))
            return case((event.price_id.is_(None), 1), (priced_late, -1), else_=0)
    column: ColumnElement[Any] = getattr(event, name)
    return column


class RollupRepository:
    """For the settler, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._postgres = is_postgres(session)

    async def take_turn(self) -> bool:
        """Whether nobody else is adding up, until the transaction ends."""
        if not self._postgres:  # its only writer
            return True
        taken: bool = (
            await self._session.execute(select(func.pg_try_advisory_xact_lock(ROLLING)))
        ).scalar_one()
        return taken

    async def behind(self) -> Sequence[Behind]:
        rolled = func.coalesce(RollupWatermark.batch, 0)
        statement = (
            select(LogPosition.log, rolled, LogPosition.batch)
            .outerjoin(RollupWatermark, RollupWatermark.log == LogPosition.log)
            .where(LogPosition.batch > rolled)
            .order_by(LogPosition.log)
        )
        return [Behind(*row) for row in await self._session.execute(statement)]

    async def roll_up(self, behind: Behind) -> None:
        """Add what is behind to the roll-ups, and move the watermark with it."""
        insert = postgresql.insert if self._postgres else sqlite.insert
        keys = [key_of(name) for name in KEYS]
        fresh = (
            select(
                *keys,
                func.max(UsageEvent.organisation_id),
                *(func.sum(share_of(name)) for name in SUMS),
            )
            .where(
                UsageEvent.log == behind.log,
                UsageEvent.batch > behind.rolled,
                UsageEvent.batch <= behind.batch,
            )
            .group_by(*keys)
            .order_by(*keys)
        )
        made = insert(UsageRollup).from_select([*KEYS, "organisation_id", *SUMS], fresh)
        added = {name: getattr(UsageRollup, name) + made.excluded[name] for name in SUMS}
        await self._session.execute(made.on_conflict_do_update(index_elements=KEYS, set_=added))
        mark = insert(RollupWatermark).values(log=behind.log, batch=behind.batch)
        await self._session.execute(
            mark.on_conflict_do_update(index_elements=["log"], set_={"batch": behind.batch})
        )
