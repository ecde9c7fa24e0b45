"""Counts of how fast answers came, of one organisation; None: of all, for operators.

Those of all are kept by day as well: nobody could wait while every tenant's are added up.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Subquery, func, select, union_all
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.event import EPOCH
from gateway.usage.models import UsagePace, UsagePaceDay
from gateway.usage.pace import Place
from gateway.usage.report_repository import DAY, Window
from gateway.usage.sqlite_rows import insert_of, moment_text, packed


class PaceRepository:
    def __init__(self, session: AsyncSession, organisation: str | None = None) -> None:
        self._session = session
        self._organisation = organisation

    async def add(self, counts: Mapping[Place, int]) -> None:
        """For the settler."""
        if not counts:
            return
        rows = [
            {"slot": place.slot, "project_id": place.project, "model": place.model,
             "kind": place.kind, "step": place.step, "organisation_id": place.organisation,
             "requests": number}
            for place, number in sorted(counts.items())
        ]  # fmt: skip
        await self._add(UsagePace, ["slot", "project_id", "model", "kind", "step"], rows)
        days: Counter[tuple[datetime, str, int]] = Counter()
        for place, number in counts.items():
            days[place.slot - (place.slot - EPOCH) % DAY, place.kind, place.step] += number
        rows = [
            {"day": day, "kind": kind, "step": step, "requests": number}
            for (day, kind, step), number in sorted(days.items())
        ]
        await self._add(UsagePaceDay, ["day", "kind", "step"], rows)

    async def _add(
        self,
        table: type[UsagePace] | type[UsagePaceDay],
        keys: list[str],
        rows: list[dict[str, Any]],
    ) -> None:
        if is_postgres(self._session):
            made = postgresql.insert(table)
            added = {"requests": table.requests + made.excluded.requests}
            await self._session.execute(
                made.on_conflict_do_update(index_elements=keys, set_=added), rows
            )
            return
        name, columns = table.__tablename__, list(rows[0])
        statement = insert_of(
            name,
            columns,
            f"({', '.join(keys)}) DO UPDATE SET requests = {name}.requests + excluded.requests",
        )
        values = [
            [moment_text(v) if isinstance(v, datetime) else v for v in row.values()] for row in rows
        ]
        connection = await self._session.connection()
        await connection.exec_driver_sql(statement, (packed(values),))

    async def counts(self, window: Window) -> dict[str, dict[int, int]]:
        """Kind -> step -> requests."""
        facts = self._facts(window)
        statement = select(facts.c.kind, facts.c.step, func.sum(facts.c.requests)).group_by(
            facts.c.kind, facts.c.step
        )
        found: dict[str, dict[int, int]] = {}
        for kind, step, requests in await self._session.execute(statement):
            found.setdefault(kind, {})[step] = int(requests)
        return found

    async def by_model(
        self, window: Window, project: str, models: Collection[str]
    ) -> dict[str, dict[str, dict[int, int]]]:
        """Model -> kind -> step -> requests, of one project's requests by these names."""
        pace = UsagePace
        statement = (
            select(pace.model, pace.kind, pace.step, func.sum(pace.requests))
            .where(pace.slot >= window.start, pace.slot < window.end)
            .where(pace.organisation_id == self._organisation, pace.project_id == project)
            .where(pace.model.in_(models))
            .group_by(pace.model, pace.kind, pace.step)
        )
        found: dict[str, dict[str, dict[int, int]]] = {}
        for model, kind, step, requests in await self._session.execute(statement):
            found.setdefault(model, {}).setdefault(kind, {})[step] = int(requests)
        return found

    def _facts(self, window: Window) -> Subquery:
        """Rows of the window: by quarters of an hour, and for all tenants whole days by days."""
        if self._organisation is not None:
            mine = _between(UsagePace, UsagePace.slot, window.start, window.end)
            return mine.where(UsagePace.organisation_id == self._organisation).subquery()
        first = window.start + (EPOCH - window.start) % DAY
        last = window.end - (window.end - EPOCH) % DAY
        if first >= last:
            return _between(UsagePace, UsagePace.slot, window.start, window.end).subquery()
        return union_all(
            _between(UsagePaceDay, UsagePaceDay.day, first, last),
            _between(UsagePace, UsagePace.slot, window.start, first),
            _between(UsagePace, UsagePace.slot, last, window.end),
        ).subquery()


def _between(
    table: type[UsagePace] | type[UsagePaceDay], slot: Any, start: datetime, end: datetime
) -> Select[str, int, int]:
    return select(table.kind, table.step, table.requests).where(slot >= start, slot < end)
