"""Queries over the audit log of one organisation."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.models import AuditEvent


class AuditRepository:
    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, event: AuditEvent) -> None:
        self._session.add(event)

    async def newest_first(self, most: int | None = None) -> Sequence[AuditEvent]:
        statement = (
            select(AuditEvent)
            .where(AuditEvent.organisation_id == self._organisation)
            .order_by(AuditEvent.number.desc())
            .limit(most)
        )
        return (await self._session.scalars(statement)).all()
