"""A caller's own rows of the catalogue."""

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.adapter_api.callers import Caller
from gateway.catalog.repository import AdapterRepository
from gateway.catalog.service import CatalogService


def service_of(session: AsyncSession, who: Caller) -> CatalogService:
    return CatalogService(session, who.project, datetime.now(UTC))


async def names_of(session: AsyncSession, who: Caller) -> dict[str, str]:
    rows = await AdapterRepository(session, who.project).all()
    return {row.id: f"{row.name}@{row.version}" for row in rows}
