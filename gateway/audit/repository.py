"""Queries over the audit log of one organisation."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.models import AuditEvent


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """``values``: column -> what it may be; ``times``: gt, gte, lt or lte -> a moment."""

    values: Mapping[str, Sequence[str]]
    times: Mapping[str, datetime]

    def conditions(self) -> list[ColumnElement[bool]]:
        compare = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
        return [
            *(getattr(AuditEvent, name).in_(values) for name, values in self.values.items()),
            *(compare[name](AuditEvent.at, moment) for name, moment in self.times.items()),
        ]


class AuditRepository:
    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, event: AuditEvent) -> None:
        self._session.add(event)

    async def event(self, event_id: str) -> AuditEvent | None:
        return (await self._session.scalars(self._mine().where(AuditEvent.id == event_id))).first()

    async def newest_first(
        self,
        most: int | None = None,
        wanted: AuditFilter | None = None,
        *,
        after: int | None = None,
        before: int | None = None,
    ) -> Sequence[AuditEvent]:
        """Events older than number ``after`` and newer than ``before``."""
        number = AuditEvent.number
        order = number.desc() if before is None else number  # those next to the cursor
        statement = self._mine().order_by(order).limit(most)
        if wanted is not None:
            statement = statement.where(*wanted.conditions())
        if after is not None:
            statement = statement.where(AuditEvent.number < after)
        if before is not None:
            statement = statement.where(AuditEvent.number > before)
        rows = (await self._session.scalars(statement)).all()
        return rows if before is None else rows[::-1]

    def _mine(self) -> Select[AuditEvent]:
        return select(AuditEvent).where(AuditEvent.organisation_id == self._organisation)
