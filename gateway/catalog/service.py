"""Adapters of one project: published as the next version of a name, and retired."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from engine.protocol import AdapterRef
from gateway.catalog.models import Adapter, AdapterState
from gateway.catalog.repository import AdapterRepository
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.ids import new_id
from gateway.names import checked_name


class CatalogService:
    def __init__(self, session: AsyncSession, project: str, now: datetime) -> None:
        self._rows = AdapterRepository(session, project)
        self._now = now

    async def publish(self, name: str, adapter: AdapterRef) -> Adapter:
        """The name means the new version from the commit on. Versions are never reused."""
        versions = await self._rows.versions(checked_name(name, param="adapter"))
        row = Adapter(
            id=new_id("adp"),
            project_id=self._rows.project,
            name=name,
            version=max((row.version for row in versions), default=0) + 1,
            digest=adapter.digest,
            rank=adapter.rank,
            state=AdapterState.READY,
            created_at=self._now,
            retired_at=None,
        )
        self._rows.add(row)
        return row

    async def retire(self, reference: str) -> list[Adapter]:
        """``name`` retires every version, ``name@3`` one. Raises ResourceNotFound."""
        name, at, version = reference.partition("@")
        if (at and not version.isascii()) or (at and not version.isdigit()):
            raise InvalidRequest(f"adapter {reference[:80]!r}: write name or name@3")
        retired = [
            row
            for row in await self._rows.versions(name)
            if row.state == AdapterState.READY and (not at or row.version == int(version))
        ]
        if not retired:
            raise ResourceNotFound(f"no adapter {reference[:80]!r} in this tenant")
        for row in retired:
            row.state, row.retired_at = AdapterState.RETIRED, self._now
        return retired
