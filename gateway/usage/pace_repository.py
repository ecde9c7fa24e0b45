"""Counts of how fast answers came, of one organisation; None: of all, for operators."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.models import UsagePace
from gateway.usage.pace import Place
from gateway.usage.report_repository import Window


class PaceRepository:
    def __init__(self, session: AsyncSession, organisation: str | None = None) -> None:
        self._session = session
        self._organisation = organisation

    async def add(self, counts: Mapping[Place, int]) -> None:
        """For the settler."""
        if not counts:
            return
        insert = postgresql.insert if is_postgres(self._session) else sqlite.insert
        rows = [
            {"slot": place.slot, "project_id": place.project, "model": place.model,
             "kind": place.kind, "step": place.step, "organisation_id": place.organisation,
             "requests": number}
            for place, number in sorted(counts.items())
        ]  # fmt: skip
        made = insert(UsagePace)
        added = made.on_conflict_do_update(
            index_elements=["slot", "project_id", "model", "kind", "step"],
            set_={"requests": UsagePace.requests + made.excluded.requests},
        )
        await self._session.execute(added, rows)

    async def counts(self, window: Window) -> dict[str, dict[int, int]]:
        """Kind -> step -> requests."""
        statement = (
            select(UsagePace.kind, UsagePace.step, func.sum(UsagePace.requests))
            .where(UsagePace.slot >= window.start, UsagePace.slot < window.end)
            .group_by(UsagePace.kind, UsagePace.step)
        )
        if self._organisation is not None:
            statement = statement.where(UsagePace.organisation_id == self._organisation)
        found: dict[str, dict[int, int]] = {}
        for kind, step, requests in await self._session.execute(statement):
            found.setdefault(kind, {})[step] = int(requests)
        return found
