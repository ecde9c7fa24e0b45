"""Queries over adapters."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.catalog.models import Adapter, AdapterState
from gateway.db import TenantRepository


class AdapterRepository(TenantRepository[Adapter]):
    rows = Adapter

    async def versions(self, name: str) -> Sequence[Adapter]:
        """Retired ones too, oldest first."""
        statement = self.mine().where(Adapter.name == name).order_by(Adapter.version)
        return (await self._session.scalars(statement)).all()

    async def all(self) -> Sequence[Adapter]:
        statement = self.mine().order_by(Adapter.name, Adapter.version)
        return (await self._session.scalars(statement)).all()


class CatalogRepository:
    """For the snapshot, which sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def ready(self) -> Sequence[Adapter]:
        statement = (
            select(Adapter)
            .where(Adapter.state == AdapterState.READY)
            .order_by(Adapter.project_id, Adapter.name, Adapter.version)
        )
        return (await self._session.scalars(statement)).all()
