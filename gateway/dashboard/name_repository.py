"""Names of keys and adapter versions, also of those that have ended: usage outlives them."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.catalog.models import Adapter
from gateway.identity.models import ApiKey, Project


class NameRepository:
    """Of one organisation; None: of all, for operators."""

    def __init__(self, session: AsyncSession, organisation: str | None) -> None:
        self._session = session
        self._organisation = organisation

    async def keys(self) -> dict[str, str]:
        statement = select(ApiKey.id, ApiKey.name, ApiKey.last4)
        if self._organisation is not None:
            statement = statement.where(ApiKey.organisation_id == self._organisation)
        rows = await self._session.execute(statement)
        return {id: f"{name} …{last4}".strip() for id, name, last4 in rows}

    async def adapters(self) -> dict[str, str]:
        statement = select(Adapter.id, Project.name, Adapter.name, Adapter.version).join(
            Project, Project.id == Adapter.project_id
        )
        if self._organisation is not None:
            statement = statement.where(Project.organisation_id == self._organisation)
        rows = await self._session.execute(statement)
        return {id: f"{project}/{name}@{version}" for id, project, name, version in rows}
