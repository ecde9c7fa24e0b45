"""Adding events up by quarter of an hour, and finding those not yet added."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Base, is_postgres
from gateway.usage.models import LogPosition, RollupWatermark, UsageDay, UsageEvent, UsageRollup

ROLLING = 0x10_7C  # Postgres advisory lock: one adds up at a time

NOBODY = "*"  # whose the sums of all tenants are: no organisation is called that
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
DAY_KEYS = (
    "project_id",
    "tier",
    "model",
    "base_model",
    "adapter_id",
    "endpoint",
)  # of a day's sums, beside the day and the grain
# What each grain of a day's sums tells apart; to the rest of its keys it says nothing.
GRAINS = {
    "all": DAY_KEYS,
    "owner": ("project_id",),
    "kind": ("tier", "model", "base_model", "endpoint"),  # of all tenants together
    "week": ("project_id",),  # as "owner", of seven days: who spent most in months, among thousands
}
WEEKLY = "week"
DAY_S = 24 * 60 * 60
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
        """Add what is behind to the roll-ups of quarters and days, and move the watermark with
        them."""
        keys: dict[str, ColumnElement[Any]] = {name: key_of(name) for name in KEYS}
        await self._add(UsageRollup, keys, behind)
        for grain, told in GRAINS.items():
            days = 7 if grain == WEEKLY else 1
            day = days_of(UsageEvent.slot, days, postgres=self._postgres)
            known = {name: keys[name] if name in told else literal("") for name in DAY_KEYS}
            await self._add(UsageDay, {"grain": literal(grain), "day": day} | known, behind)
        mark = self._insert(RollupWatermark).values(log=behind.log, batch=behind.batch)
        await self._session.execute(
            mark.on_conflict_do_update(index_elements=["log"], set_={"batch": behind.batch})
        )

    async def _add(
        self,
        table: type[UsageRollup] | type[UsageDay],
        keys: Mapping[str, ColumnElement[Any]],
        behind: Behind,
    ) -> None:
        owned = not isinstance(keys["project_id"], BindParameter)
        fresh = _fresh(list(keys.values()), behind, owned=owned)
        made = self._insert(table).from_select([*keys, "organisation_id", *SUMS], fresh)
        added = {name: getattr(table, name) + made.excluded[name] for name in SUMS}
        await self._session.execute(
            made.on_conflict_do_update(index_elements=list(keys), set_=added)
        )

    def _insert(self, table: type[Base]) -> Any:
        return (postgresql.insert if self._postgres else sqlite.insert)(table)


def days_of(slot: Any, days: int, *, postgres: bool) -> ColumnElement[Any]:
    """The first moment of its day of UTC, or of so many counted from 1970-01-01, as the database
    keeps it."""
    if days == 1 and postgres:
        return func.date_trunc("day", slot)
    if days == 1:
        return func.substr(slot, 1, 10).op("||")(" 00:00:00.000000")
    seconds: ColumnElement[Any] = literal_column(str(days * DAY_S), Integer)
    if postgres:
        return func.to_timestamp(func.floor(func.extract("epoch", slot) / seconds) * seconds)
    whole = cast(func.strftime("%s", slot), Integer) // seconds * seconds
    return func.strftime("%Y-%m-%d", whole, "unixepoch").op("||")(" 00:00:00.000000")


def _fresh(keys: Sequence[ColumnElement[Any]], behind: Behind, *, owned: bool) -> Select[Any]:
    """What the roll-ups do not have yet, by these keys and in their order. ``owned``: each row is
    one project's."""
    event = UsageEvent
    owner = func.max(event.organisation_id) if owned else literal(NOBODY)
    told = [key for key in keys if not isinstance(key, BindParameter)]
    return (
        select(*keys, owner, *(func.sum(share_of(name)) for name in SUMS))
        .where(event.log == behind.log, event.batch > behind.rolled, event.batch <= behind.batch)
        .group_by(*told)
        .order_by(*told)
    )
