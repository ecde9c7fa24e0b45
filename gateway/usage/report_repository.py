"""What an organisation or a project used: roll-ups, and the events not yet in them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Select,
    Subquery,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.event import EPOCH, SLOT_S
from gateway.usage.models import LogPosition, RollupWatermark, UsageEvent, UsageRollup
from gateway.usage.rollup_repository import KEYS, SUMS, key_of, share_of

SLOT = timedelta(seconds=SLOT_S)
OWNER = "organisation_id"  # no key of a roll-up: its project says it


@dataclass(frozen=True, slots=True)
class Window:
    """Half open: [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Ids and names to keep; empty means all. Fields are the columns."""

    project_id: tuple[str, ...] = ()
    key_id: tuple[str, ...] = ()
    user_id: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    base_model: tuple[str, ...] = ()
    adapter_id: tuple[str, ...] = ()  # "" is the base itself
    tier: tuple[str, ...] = ()
    endpoint: tuple[str, ...] = ()

    def conditions(self, column: Any) -> list[ColumnElement[bool]]:
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [column(name).in_(values) for name, values in given if values]


class ReportRepository:
    """Rows of one organisation, or of one of its projects: every select starts from ``_mine``.

    ``organisation`` None: of all, for operators.
    """

    def __init__(
        self, session: AsyncSession, organisation: str | None, project: str | None
    ) -> None:
        self._session = session
        self._organisation, self._project = organisation, project

    async def lines(
        self, window: Window, group_by: Sequence[str], only: Only, *, by_minute: bool = False
    ) -> Sequence[Any]:
        """Rows of (slot or minute, the groups, the sums). One statement, so one instant."""
        facts = (self._by_minute(window, only) if by_minute else self._by_slot(window, only)).cte()
        return await self._summed(facts, group_by)

    async def between(
        self, edges: Sequence[datetime], group_by: Sequence[str], only: Only
    ) -> Sequence[Any]:
        """The same, with for each pair of neighbours of ``edges`` one slot within it, where the
        database can; SQLite gives every slot."""
        facts = self._by_slot(Window(edges[0], edges[-1]), only).cte()
        if not is_postgres(self._session):
            return await self._summed(facts, group_by)
        given = literal(list(edges), ARRAY(TIMESTAMP(timezone=True)))
        others = [column for column in facts.c if column.name != "slot"]
        place = func.width_bucket(facts.c.slot, given)  # 1 for the first
        rows = await self._summed(select(place.label("slot"), *others).cte(), group_by)
        return [(edges[number - 1], *values) for number, *values in rows]

    async def _summed(self, facts: CTE, group_by: Sequence[str]) -> Sequence[Any]:
        keys = [facts.c.slot, *(facts.c[name] for name in group_by)]
        sums = [func.sum(facts.c[name]).label(name) for name in SUMS]
        statement = select(*keys, *sums).group_by(*keys).order_by(*keys)
        return (await self._session.execute(statement)).all()

    def _by_slot(self, window: Window, only: Only) -> CompoundSelect[Any]:
        """Whole quarters of an hour from the roll-ups; the window's ragged ends from events."""
        first, last = _up(window.start), _down(window.end)
        if first > last:  # all within one quarter
            first = last = window.end
        rollup = UsageRollup
        rolled = (
            self._mine(rollup, [getattr(rollup, name) for name in (*KEYS, OWNER, *SUMS)])
            .where(rollup.slot >= first, rollup.slot < last)
            .where(*only.conditions(lambda name: getattr(rollup, name)))
        )
        event = UsageEvent
        behind = _behind()
        tail = (
            self._events(event.slot, window, only)
            .join(behind, behind.c.log == event.log)
            .where(event.batch > behind.c.rolled, event.slot >= first, event.slot < last)
        )
        if (first, last) == (window.start, window.end):
            return union_all(rolled, tail)
        ends = self._events(event.slot, window, only).where(
            or_(event.started_at < first, event.started_at >= last)
        )
        return union_all(rolled, tail, ends)

    def _by_minute(self, window: Window, only: Only) -> Select[Any]:
        begun = UsageEvent.started_at
        minute: ColumnElement[Any] = (
            func.date_trunc("minute", begun)
            if is_postgres(self._session)
            else func.substr(begun, 1, 16).op("||")(":00.000000")
        )
        return self._events(minute, window, only)

    def _events(self, slot: Any, window: Window, only: Only) -> Select[Any]:
        event = UsageEvent
        keys = [
            slot.label("slot"),
            *(key_of(name).label(name) for name in (*KEYS, OWNER) if name != "slot"),
        ]
        return (
            self._mine(event, [*keys, *(share_of(name).label(name) for name in SUMS)])
            .where(event.day >= window.start.astimezone(UTC).date())
            .where(event.day <= window.end.astimezone(UTC).date())
            .where(event.started_at >= window.start, event.started_at < window.end)
            .where(*only.conditions(key_of))
        )

    def _mine(
        self, table: type[UsageEvent] | type[UsageRollup], columns: Sequence[Any]
    ) -> Select[Any]:
        statement = select(*columns)
        if self._organisation is not None:
            statement = statement.where(table.organisation_id == self._organisation)
        if self._project is not None:
            statement = statement.where(table.project_id == self._project)
        return statement


def _behind() -> Subquery:
    """Logs of which something is not in the roll-ups: mostly one or none, so that its events are
    found by their log and not by looking at all."""
    rolled = func.coalesce(RollupWatermark.batch, 0)
    return (
        select(LogPosition.log, rolled.label("rolled"))
        .outerjoin(RollupWatermark, RollupWatermark.log == LogPosition.log)
        .where(LogPosition.batch > rolled)
        .subquery()
    )


def _down(time: datetime) -> datetime:
    return time - (time - EPOCH) % SLOT


def _up(time: datetime) -> datetime:
    return -(-(time - EPOCH) // SLOT) * SLOT + EPOCH
