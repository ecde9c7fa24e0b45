"""Names of what the ledger knows by id, also of what has ended: usage outlives it.

Columns are read and no objects made of them: for an operator there are thousands.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.catalog.models import Adapter
from gateway.identity.models import ApiKey, Organisation, Project

ARCHIVED = " (archived)"


class NameRepository:
    """Of one organisation; None: of all, for operators."""

    def __init__(self, session: AsyncSession, organisation: str | None) -> None:
        self._session = session
        self._organisation = organisation

    async def payers(self, ids: Sequence[str] | None = None) -> Sequence[Any]:
        """(id, name, billing) of each organisation, or of those with these ids."""
        statement = select(Organisation.id, Organisation.name, Organisation.billing)
        if ids is not None:
            statement = statement.where(Organisation.id.in_(ids))
        if self._organisation is not None:
            statement = statement.where(Organisation.id == self._organisation)
        return (await self._session.execute(statement)).all()

    async def organisations(self, ids: Sequence[str] | None = None) -> dict[str, str]:
        """Those with these ids; None: all."""
        return {id: name for id, name, _ in await self.payers(ids)}

    async def projects(self, ids: Sequence[str] | None = None) -> dict[str, str]:
        """The same; with their organisation's name, where there are several."""
        statement = select(Project.id, Organisation.name, Project.name, Project.archived_at).join(
            Organisation, Organisation.id == Project.organisation_id
        )
        if self._organisation is not None:
            statement = statement.where(Project.organisation_id == self._organisation)
        if ids is not None:
            statement = statement.where(Project.id.in_(ids))
        rows = await self._session.execute(statement)
        return {
            id: (name if self._organisation else f"{organisation}/{name}")
            + (ARCHIVED if archived_at else "")
            for id, organisation, name, archived_at in rows
        }

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
