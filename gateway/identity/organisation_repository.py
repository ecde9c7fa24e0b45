"""Queries over the projects, keys and service accounts of one organisation."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.identity.models import (
    ApiKey,
    KeyKind,
    Login,
    Organisation,
    Project,
    ProjectUser,
    ServiceAccount,
    User,
)


class OrganisationRepository:
    """Every select starts from the organisation's own rows."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, row: Project | ApiKey | ServiceAccount | User | ProjectUser) -> None:
        self._session.add(row)

    async def own(self) -> Organisation | None:
        """None where there is no such organisation."""
        statement = select(Organisation).where(Organisation.id == self._organisation)
        return (await self._session.scalars(statement)).one_or_none()

    async def projects(self, *, archived: bool = False) -> Sequence[Project]:
        statement = select(Project).where(Project.organisation_id == self._organisation)
        if not archived:
            statement = statement.where(Project.archived_at.is_(None))
        statement = statement.order_by(Project.created_at, Project.id)
        return (await self._session.scalars(statement)).all()

    async def keys(
        self, project: str | None, *, revoked_after: datetime | None = None
    ) -> Sequence[ApiKey]:
        """Live ones of a project, or the organisation's admin keys; and those revoked lately."""
        kind = KeyKind.ADMIN if project is None else KeyKind.PROJECT
        lately = false() if revoked_after is None else ApiKey.revoked_at > revoked_after
        statement = (
            select(ApiKey)
            .where(ApiKey.organisation_id == self._organisation, ApiKey.kind == kind)
            .where(ApiKey.project_id == project, or_(ApiKey.revoked_at.is_(None), lately))
            .order_by(ApiKey.created_at, ApiKey.id)
        )
        return (await self._session.scalars(statement)).all()

    async def key_counts(self) -> dict[str, int]:
        """Live keys by project."""
        statement = (
            select(ApiKey.project_id, func.count())
            .where(ApiKey.organisation_id == self._organisation, ApiKey.kind == KeyKind.PROJECT)
            .where(ApiKey.revoked_at.is_(None))
            .group_by(ApiKey.project_id)
        )
        found = await self._session.execute(statement)
        return {str(project): count for project, count in found}

    async def archive(self, project: Project, now: datetime) -> None:
        """Its keys end with it."""
        project.archived_at = project.archived_at or now
        for key in await self.keys(project.id):
            key.revoked_at = now

    async def accounts(self, project: str) -> Sequence[ServiceAccount]:
        statement = (
            select(ServiceAccount)
            .join(Project, Project.id == ServiceAccount.project_id)
            .where(Project.organisation_id == self._organisation, Project.id == project)
            .where(ServiceAccount.deleted_at.is_(None))
            .order_by(ServiceAccount.created_at, ServiceAccount.id)
        )
        return (await self._session.scalars(statement)).all()

    async def people(self) -> Sequence[User]:
        """Who has not been removed, oldest first."""
        statement = (
            select(User)
            .where(User.organisation_id == self._organisation, User.removed_at.is_(None))
            .order_by(User.created_at, User.id)
        )
        return (await self._session.scalars(statement)).all()

    async def emails_of_logins(self) -> dict[str, str]:
        """By login, also of people who were removed."""
        statement = (
            select(Login.id, User.email)
            .join(User, User.id == Login.user_id)
            .where(User.organisation_id == self._organisation)
        )
        found = await self._session.execute(statement)
        return {row.id: row.email for row in found}

    async def person(self, user_id: str) -> User | None:
        return next((row for row in await self.people() if row.id == user_id), None)

    async def keys_of(self, user: User) -> Sequence[ApiKey]:
        """Of all kinds."""
        statement = select(ApiKey).where(
            ApiKey.organisation_id == self._organisation,
            ApiKey.user_id == user.id,
            ApiKey.revoked_at.is_(None),
        )
        return (await self._session.scalars(statement)).all()

    async def members(self, project: str | None = None) -> Sequence[ProjectUser]:
        """Of one project, or of all."""
        statement = (
            select(ProjectUser)
            .join(Project, Project.id == ProjectUser.project_id)
            .where(Project.organisation_id == self._organisation)
            .order_by(ProjectUser.created_at, ProjectUser.user_id)
        )
        if project is not None:
            statement = statement.where(ProjectUser.project_id == project)
        return (await self._session.scalars(statement)).all()

    async def remove(self, row: ProjectUser) -> None:
        await self._session.delete(row)
