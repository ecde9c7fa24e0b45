"""Clears away what nobody needs: forgotten uploads, and stored adapters that no version names.

An adapter is kept as long as a version names it, and after its last version retired as long as a
request that began before may still run. Belongs to one event loop.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Protocol

from adapters.errors import AdapterError
from gateway.adapter_api.staging import Staging
from gateway.catalog.models import UploadState
from gateway.catalog.repository import CatalogRepository, UploadRepository
from gateway.db import Database, DatabaseUnavailable

INTERVAL_S = 60.0
FORGOTTEN = timedelta(hours=24)  # an upload that nobody went on with
STUCK = timedelta(hours=1)  # a validation whose gateway is gone
SETTLED = timedelta(hours=1)  # from storing an adapter to naming it takes less

log = logging.getLogger(__name__)


class Store(Protocol):
    def stale(self, older_than_s: float) -> list[str]:
        """Digests of adapters that were not put for so long."""
        ...

    def collect(self, digest: str, older_than_s: float) -> bool:
        """Delete one unless it was put again meanwhile."""
        ...


class Sweep:
    def __init__(
        self, database: Database, staging: Staging, store: Store, *, request_timeout_s: float
    ) -> None:
        self._database, self._staging, self._store = database, staging, store
        self._running = timedelta(seconds=2 * request_timeout_s)

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except (DatabaseUnavailable, AdapterError, OSError) as error:
                log.warning("nothing was cleared away: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def once(self, now: datetime | None = None) -> None:
        now = now or datetime.now(UTC)
        await self._uploads(now)
        await self._blobs(now)

    async def _uploads(self, now: datetime) -> None:
        async with self._database.unit_of_work() as session:
            catalog = CatalogRepository(session)
            for row in await catalog.uploads(UploadState.VALIDATING, now - STUCK):
                row.state, row.changed_at = UploadState.UPLOADING, now  # complete it again
            forgotten = await catalog.uploads(UploadState.UPLOADING, now - FORGOTTEN)
            for row in forgotten:
                await UploadRepository(session, row.project_id).remove(row)
            gone = [row.id for row in forgotten]
            known = await catalog.open_uploads()
        for upload in gone:
            await asyncio.to_thread(self._staging.discard, upload)
        await asyncio.to_thread(self._staging.clear, known, older_than_s=FORGOTTEN.total_seconds())

    async def _blobs(self, now: datetime) -> None:
        """What is stale is listed before what is in use, so that nothing named since is taken."""
        stale = await asyncio.to_thread(self._store.stale, SETTLED.total_seconds())
        async with self._database.reading() as session:
            used = await CatalogRepository(session).digests_in_use(now - self._running)
        for digest in stale:
            if digest not in used:
                taken = await asyncio.to_thread(
                    self._store.collect, digest, SETTLED.total_seconds()
                )
                log.info("stored adapter %s: %s", digest, "deleted" if taken else "put again")
