"""The ledger's own side of a reconciliation, over every tenant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.models import RollupWatermark, UsageDay, UsageEvent, UsageRollup
from gateway.usage.rollup_repository import SUMS, days_of, share_of

Sums = Mapping[tuple[str, str], Mapping[str, int]]  # (project, quarter of an hour, or day) -> sums


@dataclass(frozen=True, slots=True)
class Billed:
    prompt: int
    completion: int
    outcome: str
    finish_reason: str | None
    recovered: bool


class ReconcileRepository:
    """For the operator, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def added_up(self, since: datetime) -> Sums:
        """From the events that the watermark says are in the roll-ups."""
        event = UsageEvent
        statement = (
            select(event.project_id, event.slot, *(func.sum(share_of(name)) for name in SUMS))
            .join(RollupWatermark, RollupWatermark.log == event.log)
            .where(event.batch <= RollupWatermark.batch, event.slot >= since)
            .group_by(event.project_id, event.slot)
        )
        return _by_place((await self._session.execute(statement)).all())

    async def rolled_up(self, since: datetime) -> Sums:
        rollup = UsageRollup
        sums = (func.sum(getattr(rollup, name)) for name in SUMS)
        statement = (
            select(rollup.project_id, rollup.slot, *sums)
            .where(rollup.slot >= since)
            .group_by(rollup.project_id, rollup.slot)
        )
        return _by_place((await self._session.execute(statement)).all())

    async def rolled_by_day(self, days: int = 1) -> Sums:
        """From the quarters of an hour, by day or by so many; of all tenants under no project."""
        rollup = UsageRollup
        day = days_of(rollup.slot, days, postgres=is_postgres(self._session))
        sums = [func.sum(getattr(rollup, name)) for name in SUMS]
        owned = select(rollup.project_id, day, *sums).group_by(rollup.project_id, day)
        whole = select(literal(""), day, *sums).group_by(day)
        rows = [*await self._session.execute(owned), *await self._session.execute(whole)]
        return _by_place(rows)

    async def days(self, grain: str) -> Sums:
        """From the days' own sums."""
        day = UsageDay
        statement = (
            select(day.project_id, day.day, *(func.sum(getattr(day, name)) for name in SUMS))
            .where(day.grain == grain)
            .group_by(day.project_id, day.day)
        )
        return _by_place((await self._session.execute(statement)).all())

    async def totals_before(self, moment: datetime) -> tuple[int, int]:
        """Events and nano-dollars of what is there all the same, and rolled up."""
        event = UsageEvent
        statement = (
            select(func.count(event.id), func.sum(event.cost_nano))
            .join(RollupWatermark, RollupWatermark.log == event.log)
            .where(event.batch <= RollupWatermark.batch, event.slot < moment)
        )
        events, nano = (await self._session.execute(statement)).one()
        return int(events or 0), int(nano or 0)

    async def rolled_before(self, moment: datetime) -> tuple[int, int]:
        rollup = UsageRollup
        cost = rollup.input_nano + rollup.cached_nano + rollup.output_nano + rollup.storage_nano
        statement = select(func.sum(rollup.events), func.sum(cost)).where(rollup.slot < moment)
        events, nano = (await self._session.execute(statement)).one()
        return int(events or 0), int(nano or 0)

    async def billed(self, requests: Sequence[str]) -> dict[str, Billed]:
        event = UsageEvent
        statement = select(
            event.id,
            event.prompt_tokens,
            event.completion_tokens,
            event.outcome,
            event.finish_reason,
            event.recovered,
        ).where(event.id.in_(requests))
        rows = (await self._session.execute(statement)).all()
        return {row.id: Billed(*row[1:]) for row in rows}

    async def of_boots(self, boots: Sequence[str], *, after: str) -> set[str]:
        """Requests billed for an answer that one of these boots gave; ids rise with time."""
        event = UsageEvent
        statement = select(event.id).where(
            event.boot.in_(boots), event.id >= after, event.completion_tokens > 0
        )
        return set(await self._session.scalars(statement))


def _by_place(rows: Sequence[Any]) -> Sums:
    return {
        (project, _text(slot)): dict(zip(SUMS, map(int, sums), strict=True))
        for project, slot, *sums in rows
    }


def _text(slot: datetime | str) -> str:
    """SQLite gives computed times as text."""
    found = datetime.fromisoformat(slot) if isinstance(slot, str) else slot
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()
