"""Queries over the projects, keys and service accounts of one organisation."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.identity.models import ApiKey, KeyKind, Project, ServiceAccount


class OrganisationRepository:
    """Every select starts from the organisation's own rows."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, row: Project | ApiKey | ServiceAccount) -> None:
        self._session.add(row)

    async def projects(self, *, archived: bool = False) -> Sequence[Project]:
        statement = select(Project).where(Project.organisation_id == self._organisation)
        if not archived:
            statement = statement.where(Project.archived_at.is_(None))
        statement = statement.order_by(Project.created_at, Project.id)
        return (await self._session.scalars(statement)).all()

    async def keys(self, project: str | None) -> Sequence[ApiKey]:
        """Live ones of a project, or the organisation's admin keys."""
        kind = KeyKind.ADMIN if project is None else KeyKind.PROJECT
        statement = (
            select(ApiKey)
            .where(ApiKey.organisation_id == self._organisation, ApiKey.kind == kind)
            .where(ApiKey.project_id == project, ApiKey.revoked_at.is_(None))
            .order_by(ApiKey.created_at, ApiKey.id)
        )
        return (await self._session.scalars(statement)).all()

    async def accounts(self, project: str) -> Sequence[ServiceAccount]:
        statement = (
            select(ServiceAccount)
            .join(Project, Project.id == ServiceAccount.project_id)
            .where(Project.organisation_id == self._organisation, Project.id == project)
            .where(ServiceAccount.deleted_at.is_(None))
            .order_by(ServiceAccount.created_at, ServiceAccount.id)
        )
        return (await self._session.scalars(statement)).all()
