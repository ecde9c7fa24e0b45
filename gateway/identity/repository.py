"""Queries over organisations, projects and keys."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload

from gateway.identity.models import (
    ApiKey,
    Organisation,
    Project,
    ProjectUser,
    ServiceAccount,
    User,
)


class IdentityRepository:
    """For the operator's commands and the snapshot, which see every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def add(self, row: Organisation | Project | ApiKey | ServiceAccount) -> None:
        self._session.add(row)

    async def organisation(self, name: str) -> Organisation | None:
        return await self._session.scalar(select(Organisation).where(Organisation.name == name))

    async def organisations(self) -> Sequence[Organisation]:
        statement = select(Organisation).order_by(Organisation.created_at, Organisation.id)
        return (await self._session.scalars(statement)).all()

    async def projects(self, name: str | None = None) -> Sequence[Project]:
        """Live ones, oldest first, with their organisation."""
        statement = (
            select(Project)
            .where(Project.archived_at.is_(None))
            .options(joinedload(Project.organisation))
            .order_by(Project.created_at, Project.id)
        )
        if name is not None:
            statement = statement.where(Project.name == name)
        return (await self._session.scalars(statement)).all()

    async def key(self, key_id: str) -> ApiKey | None:
        return await self._session.get(ApiKey, key_id)

    async def successor(self, key_id: str) -> ApiKey | None:
        """The key that took its place."""
        return await self._session.scalar(select(ApiKey).where(ApiKey.replaces == key_id))

    async def replaced(self) -> dict[str, str]:
        """Keys that took another's place -> the other."""
        statement = select(ApiKey.id, ApiKey.replaces).where(ApiKey.replaces.is_not(None))
        return {key: old for key, old in await self._session.execute(statement) if old}

    async def keys(self, project: str | None = None) -> Sequence[ApiKey]:
        """All, revoked ones too, oldest first, with their owners."""
        statement = (
            select(ApiKey)
            .options(joinedload(ApiKey.project), joinedload(ApiKey.organisation))
            .order_by(ApiKey.created_at, ApiKey.id)
        )
        if project is not None:
            statement = statement.where(ApiKey.project_id == project)
        return (await self._session.scalars(statement)).all()

    async def live_keys(self) -> Sequence[ApiKey]:
        """Not revoked, of a live project or of none; with the project; oldest first."""
        statement = (
            select(ApiKey)
            .outerjoin(ApiKey.project)
            .where(ApiKey.revoked_at.is_(None), Project.archived_at.is_(None))
            .options(joinedload(ApiKey.project))
            .order_by(ApiKey.created_at, ApiKey.id)
        )
        return (await self._session.scalars(statement)).all()

    async def people(self) -> Sequence[User]:
        """Who has not been removed."""
        return (await self._session.scalars(select(User).where(User.removed_at.is_(None)))).all()

    async def memberships(self) -> Sequence[ProjectUser]:
        statement = select(ProjectUser).order_by(ProjectUser.project_id, ProjectUser.user_id)
        return (await self._session.scalars(statement)).all()
