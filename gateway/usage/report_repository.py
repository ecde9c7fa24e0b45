"""What an organisation or a project used: roll-ups, and the events not yet in them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Select,
    Subquery,
    case,
    false,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from gateway.db import is_postgres, sees_one_instant
from gateway.usage.event import EPOCH, SLOT_S
from gateway.usage.models import LogPosition, RollupWatermark, UsageDay, UsageEvent, UsageRollup
from gateway.usage.rollup_repository import GRAINS, SUMS, WEEKLY, key_of, share_of

SLOT, DAY, WEEK = timedelta(seconds=SLOT_S), timedelta(days=1), timedelta(days=7)
MOST_CASES = 100  # buckets that SQLite looks through for each row
OWNER = "organisation_id"  # no key of a roll-up: its project says it


@dataclass(frozen=True, slots=True)
class Window:
    """Half open: [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Ids and names to keep; empty means all. Fields are the columns."""

    organisation_id: tuple[str, ...] = ()
    project_id: tuple[str, ...] = ()
    key_id: tuple[str, ...] = ()
    user_id: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    base_model: tuple[str, ...] = ()
    adapter_id: tuple[str, ...] = ()  # "" is the base itself
    tier: tuple[str, ...] = ()
    endpoint: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """By which anything is kept out."""
        return [field.name for field in fields(self) if getattr(self, field.name)]

    def conditions(self, column: Any) -> list[ColumnElement[bool]]:
        return [column(name).in_(getattr(self, name)) for name in self.columns]


@dataclass(frozen=True, slots=True)
class Asked:
    """``step``: a week, a day or a quarter of an hour, none of which, counted from 1970-01-01 of
    UTC, is to be cut in pieces."""

    window: Window
    group_by: tuple[str, ...]
    only: Only
    step: timedelta

    def grain(self, *, of_all: bool) -> str | None:
        """The smallest of the days' sums that can answer this, of all tenants or of one."""
        if self.step < DAY:
            return None
        told = {*self.group_by, *self.only.columns} - {OWNER}
        owned = not of_all or OWNER in (*self.group_by, *self.only.columns)
        for grain in ("kind", "owner", "all"):
            keys = GRAINS[grain]
            if told <= {*keys} and (not owned or "project_id" in keys):
                return grain
        return None


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
        self,
        window: Window,
        group_by: Sequence[str],
        only: Only,
        *,
        width: timedelta | None = None,
    ) -> Sequence[Any]:
        """Rows of (slot or minute, the groups, the sums), to be added up by ``width``; None: as one
        sum. All of one instant."""
        step = WEEK if width is None else min(width, DAY)
        asked = Asked(window, tuple(group_by), only, step)
        by_minute = width is not None and width < SLOT
        facts = (self._by_minute(asked) if by_minute else await self._by_slot(asked)).cte()
        return await self._summed(facts, group_by)

    async def between(
        self, edges: Sequence[datetime], group_by: Sequence[str], only: Only
    ) -> Sequence[Any]:
        """The same, with one slot within each pair of neighbours of ``edges``; or several, where
        there are very many pairs for SQLite to tell apart."""
        steps = (WEEK, DAY, SLOT)
        step = next(s for s in steps if all(_down(edge, s) == edge for edge in edges[1:-1]))
        asked = Asked(Window(edges[0], edges[-1]), tuple(group_by), only, step)
        facts = (await self._by_slot(asked)).cte()
        if not is_postgres(self._session) and len(edges) > MOST_CASES:
            return await self._summed(facts, group_by)
        others = [column for column in facts.c if column.name != "slot"]
        place = self._place(facts.c.slot, edges)
        rows = await self._summed(select(place.label("slot"), *others).cte(), group_by)
        return [(edges[number - 1], *values) for number, *values in rows]

    async def largest(
        self, window: Window, group: str, by: Sequence[Sequence[str]], most: int, only: Only
    ) -> Sequence[Any]:
        """Rows of (the group, its sums, how many groups there are, the sums of them all), of the
        groups with the largest ``by``: each a sum of sums, the first the most important."""
        facts = (await self._by_slot(Asked(window, (group,), only, WEEK))).cte()
        each = [func.sum(facts.c[name]).label(name) for name in SUMS]
        sums = select(facts.c[group], *each).group_by(facts.c[group]).cte()
        totals: list[Any] = [sum(sums.c[name] for name in names) for names in by]
        order = [total.desc() for total in totals]
        named = sums.c[group].collate("C") if is_postgres(self._session) else sums.c[group]
        columns = [sums.c[group], *(sums.c[name] for name in SUMS)]
        wholes = [func.sum(sums.c[name]).over() for name in SUMS]
        statement = select(*columns, func.count().over(), *wholes)
        return (await self._session.execute(statement.order_by(*order, named).limit(most))).all()

    def _place(self, slot: Any, edges: Sequence[datetime]) -> ColumnElement[int]:
        """Between which edges: 1 for the first two."""
        if len(edges) == 2:
            return literal(1)
        if is_postgres(self._session):
            return func.width_bucket(slot, literal(list(edges), ARRAY(TIMESTAMP(timezone=True))))
        return case(*((slot < edge, number) for number, edge in enumerate(edges[1:], 1)))

    async def _summed(self, facts: CTE, group_by: Sequence[str]) -> Sequence[Any]:
        keys = [facts.c.slot, *(facts.c[name] for name in group_by)]
        sums = [func.sum(facts.c[name]).label(name) for name in SUMS]
        statement = select(*keys, *sums).group_by(*keys).order_by(*keys)
        return (await self._session.execute(statement)).all()

    async def _by_slot(self, asked: Asked) -> CompoundSelect[Any]:
        """Whole quarters of an hour from the roll-ups, whole days from theirs where they know what
        is asked; the window's ragged ends from events."""
        window, event = asked.window, UsageEvent
        first, last = _up(window.start), _down(window.end)
        if first > last:  # all within one quarter
            first = last = window.end
        parts: list[Select[Any]] = []
        grain = asked.grain(of_all=self._organisation is None and self._project is None)
        steps: tuple[timedelta, ...] = () if grain is None else (DAY,)
        if grain == "owner" and asked.step == WEEK:
            steps = (WEEK, DAY)
        for step, start, end in _cut(first, last, steps):
            if step == SLOT:
                parts.append(self._rolled(UsageRollup, UsageRollup.slot, (start, end), asked))
            else:
                whole = self._rolled(UsageDay, UsageDay.day, (start, end), asked)
                parts.append(whole.where(UsageDay.grain == (WEEKLY if step == WEEK else grain)))

        def tail() -> Select[Any]:
            rows = self._events(event.slot, asked, by_log=True)
            return rows.where(event.slot >= first, event.slot < last)

        parts += await self._not_rolled(tail)
        if (first, last) != (window.start, window.end):
            ragged = or_(event.started_at < first, event.started_at >= last)
            parts.append(self._events(event.slot, asked).where(ragged))
        return union_all(*parts or [tail().where(false())])

    async def _not_rolled(self, events: Callable[[], Select[Any]]) -> list[Select[Any]]:
        """Those of the events that are not in the roll-ups, if any log has some.

        Where a transaction sees one instant that is asked first: mostly there is none, and else
        its name leads to the few events there are, where SQLite would look through them all, and
        Postgres plan for every partition.
        """
        behind, event = _behind(), UsageEvent
        if not sees_one_instant(self._session):
            joined = events().join(behind, behind.c.log == event.log)
            return [joined.where(event.batch > behind.c.rolled)]
        found = (await self._session.execute(select(behind))).all()
        return [events().where(event.log == log, event.batch > rolled) for log, rolled in found]

    def _rolled(
        self,
        table: type[UsageRollup] | type[UsageDay],
        slot: Any,
        within: tuple[datetime, datetime],
        asked: Asked,
    ) -> Select[Any]:
        columns = [getattr(table, name) for name in (*asked.group_by, *SUMS)]
        return (
            self._mine(table, [slot.label("slot"), *columns])
            .where(slot >= within[0], slot < within[1])
            .where(*asked.only.conditions(lambda name: getattr(table, name)))
        )

    def _by_minute(self, asked: Asked) -> Select[Any]:
        begun = UsageEvent.started_at
        minute: ColumnElement[Any] = (
            func.date_trunc("minute", begun)
            if is_postgres(self._session)
            else func.substr(begun, 1, 16).op("||")(":00.000000")
        )
        return self._events(minute, asked)

    def _events(self, slot: Any, asked: Asked, *, by_log: bool = False) -> Select[Any]:
        """``by_log``: they will be found by their log."""
        event, window = UsageEvent, asked.window
        plain = by_log and not is_postgres(self._session)
        keys = [slot.label("slot"), *(key_of(name).label(name) for name in asked.group_by)]
        return (
            self._mine(event, [*keys, *(share_of(name).label(name) for name in SUMS)], plain=plain)
            .where(event.day >= window.start.astimezone(UTC).date())
            .where(event.day <= window.end.astimezone(UTC).date())
            .where(event.started_at >= window.start, event.started_at < window.end)
            .where(*asked.only.conditions(key_of))
        )

    def _mine(
        self,
        table: type[UsageEvent] | type[UsageRollup] | type[UsageDay],
        columns: Sequence[Any],
        *,
        plain: bool = False,
    ) -> Select[Any]:
        """``plain``: SQLite must not take the owner's index before another."""
        statement = select(*columns)
        for column, owner in (
            (table.organisation_id, self._organisation),
            (table.project_id, self._project),
        ):
            if owner is not None:
                of_it = (
                    UnaryExpression(column.expression, operator=custom_op("+")) if plain else column
                )
                statement = statement.where(of_it == owner)
        return statement


def _plain(column: Any) -> ColumnElement[Any]:
    return UnaryExpression(column.expression, operator=custom_op("+"))


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


def _cut(
    first: datetime, last: datetime, steps: Sequence[timedelta]
) -> Iterator[tuple[timedelta, datetime, datetime]]:
    """Into whole ``steps``, the longest first, and quarters of an hour at the ends of those."""
    if first >= last:
        return
    if not steps:
        yield SLOT, first, last
        return
    step, *shorter = steps
    start, end = _up(first, step), _down(last, step)
    if start >= end:
        yield from _cut(first, last, shorter)
        return
    yield from _cut(first, start, shorter)
    yield step, start, end
    yield from _cut(end, last, shorter)


def _down(time: datetime, step: timedelta = SLOT) -> datetime:
    return time - (time - EPOCH) % step


def _up(time: datetime, step: timedelta = SLOT) -> datetime:
    return -(-(time - EPOCH) // step) * step + EPOCH
