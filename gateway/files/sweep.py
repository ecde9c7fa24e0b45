"""Deletes files whose time is over, and bytes that no row names. Belongs to one event loop."""

import asyncio
import logging
from datetime import UTC, datetime

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.files.repository import FilesRepository
from gateway.files.store import FileStore

INTERVAL_S = 60.0
SETTLED_S = 3600.0  # from writing a file to naming it takes less
AT_ONCE = 500

log = logging.getLogger(__name__)


class FileSweep:
    def __init__(self, database: Database, store: FileStore) -> None:
        self._database, self._store = database, store

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except (DatabaseUnavailable, Conflict, OSError) as error:
                log.warning("no file was cleared away: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def once(self, now: datetime | None = None) -> None:
        await self._expired(now or datetime.now(UTC))
        await self._nameless()

    async def _expired(self, now: datetime) -> None:
        """The row goes first: what is left of a crash between has no name, and goes later."""
        gone: list[str] = [""]
        while gone:
            async with self._database.unit_of_work() as session:
                rows = FilesRepository(session)
                gone = list(await rows.expired(now, AT_ONCE))
                if gone:
                    await rows.forget(gone)
            for file in gone:
                await asyncio.to_thread(self._store.discard, file)

    async def _nameless(self) -> None:
        found = await asyncio.to_thread(self._store.settled, SETTLED_S)
        for start in range(0, len(found), AT_ONCE):
            some = found[start : start + AT_ONCE]
            async with self._database.reading() as session:
                known = await FilesRepository(session).known(some)
            for file in set(some) - known:
                await asyncio.to_thread(self._store.discard, file)
