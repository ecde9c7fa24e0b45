"""Queries over adapters."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.catalog.models import (
    Adapter,
    AdapterAlias,
    AdapterGrant,
    AdapterQuota,
    AdapterState,
    AdapterUpload,
    UploadState,
)
from gateway.db import TenantRepository


class AdapterRepository(TenantRepository[Adapter]):
    rows = Adapter

    async def versions(self, name: str) -> Sequence[Adapter]:
        """Retired ones too, oldest first."""
        statement = self.mine().where(Adapter.name == name).order_by(Adapter.version)
        return (await self._session.scalars(statement)).all()

    async def version(self, name: str, version: int) -> Adapter | None:
        statement = self.mine().where(Adapter.name == name, Adapter.version == version)
        found: Adapter | None = await self._session.scalar(statement)
        return found

    async def by_id(self, adapter_id: str) -> Adapter | None:
        found: Adapter | None = await self._session.scalar(
            self.mine().where(Adapter.id == adapter_id)
        )
        return found

    async def sizes(self) -> list[tuple[str, int]]:
        """Digest and bytes of every ready version."""
        statement = (
            self.mine()
            .where(Adapter.state == AdapterState.READY)
            .with_only_columns(Adapter.digest, Adapter.nbytes)
        )
        return [(digest, nbytes) for digest, nbytes in await self._session.execute(statement)]

    async def all(self) -> Sequence[Adapter]:
        statement = self.mine().order_by(Adapter.name, Adapter.version)
        return (await self._session.scalars(statement)).all()


class AliasRepository(TenantRepository[AdapterAlias]):
    rows = AdapterAlias

    async def one(self, name: str) -> AdapterAlias | None:
        found: AdapterAlias | None = await self._session.scalar(
            self.mine().where(AdapterAlias.name == name)
        )
        return found

    async def all(self) -> Sequence[AdapterAlias]:
        return (await self._session.scalars(self.mine().order_by(AdapterAlias.name))).all()

    async def remove(self, alias: AdapterAlias) -> None:
        await self._session.delete(alias)


class GrantRepository(TenantRepository[AdapterGrant]):
    rows = AdapterGrant

    async def of(self, name: str) -> Sequence[AdapterGrant]:
        statement = self.mine().where(AdapterGrant.name == name)
        return (await self._session.scalars(statement)).all()

    async def remove(self, grant: AdapterGrant) -> None:
        await self._session.delete(grant)


class UploadRepository(TenantRepository[AdapterUpload]):
    rows = AdapterUpload

    async def one(self, upload_id: str) -> AdapterUpload | None:
        found: AdapterUpload | None = await self._session.scalar(
            self.mine().where(AdapterUpload.id == upload_id)
        )
        return found

    async def open(self) -> Sequence[AdapterUpload]:
        """Still to become a version."""
        states = (UploadState.UPLOADING, UploadState.VALIDATING)
        statement = self.mine().where(AdapterUpload.state.in_(states))
        return (await self._session.scalars(statement)).all()

    async def claim(self, upload_id: str) -> bool:
        """To validate it; false when it is not uploading, or somebody was faster."""
        result = await self._session.execute(
            update(AdapterUpload)
            .where(
                AdapterUpload.project_id == self.project,
                AdapterUpload.id == upload_id,
                AdapterUpload.state == UploadState.UPLOADING,
            )
            .values(state=UploadState.VALIDATING)
        )
        return bool(result.rowcount)  # type: ignore[attr-defined]

    async def give_up(self, upload_id: str) -> bool:
        """Forget it; false while it is being validated, or when it is gone."""
        result = await self._session.execute(
            delete(AdapterUpload).where(
                AdapterUpload.project_id == self.project,
                AdapterUpload.id == upload_id,
                AdapterUpload.state != UploadState.VALIDATING,
            )
        )
        return bool(result.rowcount)  # type: ignore[attr-defined]

    async def remove(self, upload: AdapterUpload) -> None:
        await self._session.delete(upload)


class QuotaRepository(TenantRepository[AdapterQuota]):
    rows = AdapterQuota

    async def own(self) -> AdapterQuota | None:
        found: AdapterQuota | None = await self._session.scalar(self.mine())
        return found


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

    async def ending(self, since: datetime) -> Sequence[Adapter]:
        """Retired with a deadline that was not over by then."""
        statement = select(Adapter).where(Adapter.ends_at > since)
        return (await self._session.scalars(statement)).all()

    async def names(self, adapter_ids: Iterable[str]) -> dict[str, str]:
        """What these are called, retired ones too: without alias or version."""
        statement = select(Adapter.id, Adapter.name).where(Adapter.id.in_(set(adapter_ids)))
        return {row.id: row.name for row in await self._session.execute(statement)}

    async def aliases(self) -> Sequence[AdapterAlias]:
        return (await self._session.scalars(select(AdapterAlias))).all()

    async def grants(self) -> Sequence[AdapterGrant]:
        return (await self._session.scalars(select(AdapterGrant))).all()

    async def uploads(self, state: UploadState, before: datetime) -> Sequence[AdapterUpload]:
        """Not changed since."""
        statement = select(AdapterUpload).where(
            AdapterUpload.state == state, AdapterUpload.changed_at < before
        )
        return (await self._session.scalars(statement)).all()

    async def open_uploads(self) -> set[str]:
        """Ids of those whose parts are still of use."""
        states = (UploadState.UPLOADING, UploadState.VALIDATING)
        statement = select(AdapterUpload.id).where(AdapterUpload.state.in_(states))
        return set((await self._session.scalars(statement)).all())

    async def digests_in_use(self, retired_after: datetime) -> set[str]:
        """Of ready versions, and of those retired so late that requests may still use them."""
        statement = select(Adapter.digest).where(
            or_(Adapter.state == AdapterState.READY, Adapter.retired_at > retired_after)
        )
        return set((await self._session.scalars(statement)).all())
