"""The files of projects: taken within limits, found by their owner alone, deleted in time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database, Tenancy
from gateway.errors import Conflict, FileQuotaExceeded, InvalidRequest, ResourceNotFound
from gateway.files.models import Purpose, StoredFile
from gateway.files.repository import FileRepository
from gateway.files.store import FileStore, new_file_id
from gateway.identity.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    max_bytes: int  # of one file
    per_project: int  # files
    bytes_per_project: int
    kept_for: timedelta  # unless the upload says less


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which part of a list a client wants."""

    most: int
    newest_first: bool = True
    after: str | None = None


class Uses(Protocol):
    async def reading(self, session: AsyncSession, project: str, file: str) -> bool:
        """Whether something still has to read this file."""
        ...


class Shelf:
    def __init__(
        self, database: Database, store: FileStore, limits: FileLimits, *, uses: Uses
    ) -> None:
        self._database, self._store, self._uses = database, store, uses
        self.limits = limits

    async def add(
        self,
        who: Principal,
        source: BinaryIO,
        *,
        filename: str,
        purpose: Purpose,
        lifetime: timedelta | None = None,
    ) -> StoredFile:
        """Raises FileQuotaExceeded."""
        file = new_file_id()
        nbytes = await asyncio.to_thread(self._store.put, file, source)
        now = datetime.now(UTC)
        row = StoredFile(
            id=file,
            project_id=who.project,
            filename=filename,
            purpose=purpose,
            nbytes=nbytes,
            created_at=now,
            expires_at=now + (lifetime or self.limits.kept_for),
        )
        try:
            async with self._database.unit_of_work(within=tenancy(who)) as session:
                rows = FileRepository(session, who.project)
                self._require_room(*await rows.held(), nbytes)
                rows.add(row)
        except FileQuotaExceeded:  # whether an error of the database kept it is not known
            await asyncio.to_thread(self._store.discard, file)
            raise
        return row

    async def one(self, who: Principal, file: str) -> StoredFile:
        """Raises ResourceNotFound, the same for another project's file and for none."""
        async with self._database.reading(within=tenancy(who)) as session:
            row = await FileRepository(session, who.project).one(file, datetime.now(UTC))
        if row is None:
            raise no_file(file)
        return row

    async def page(self, who: Principal, page: Page, purpose: str | None) -> Sequence[StoredFile]:
        """One more than asked for where there are more."""
        async with self._database.reading(within=tenancy(who)) as session:
            return await FileRepository(session, who.project).page(
                datetime.now(UTC),
                most=page.most + 1,
                newest_first=page.newest_first,
                after=page.after,
                purpose=purpose,
            )

    async def content(self, who: Principal, file: str) -> Path:
        """Raises ResourceNotFound."""
        return self._store.path((await self.one(who, file)).id)

    async def delete(self, who: Principal, file: str) -> None:
        """Raises ResourceNotFound, Conflict while a batch still reads it."""
        async with self._database.unit_of_work(within=tenancy(who)) as session:
            rows = FileRepository(session, who.project)
            row = await rows.one(file, datetime.now(UTC), lock=True)
            if row is None:
                raise no_file(file)
            if await self._uses.reading(session, who.project, file):
                raise Conflict("a batch reads this file; cancel it, or wait for its end")
            await rows.remove(row)
        await asyncio.to_thread(self._store.discard, file)

    def _require_room(self, count: int, held: int, nbytes: int) -> None:
        limits = self.limits
        if count >= limits.per_project:
            raise FileQuotaExceeded(
                f"The project keeps {count} files and may keep {limits.per_project}."
            )
        if held + nbytes > limits.bytes_per_project:
            raise FileQuotaExceeded(
                f"The project keeps {held} bytes of files and may keep"
                f" {limits.bytes_per_project}; this file has {nbytes}."
            )


def tenancy(who: Principal) -> Tenancy:
    return Tenancy(who.organisation, who.project)


def no_file(file: str, param: str = "id") -> ResourceNotFound:
    return ResourceNotFound(f"No such File object: {file[:80]!a}", param=param)


def checked_filename(name: str) -> str:
    """A name is data and never a path, but it is shown again. Raises InvalidRequest."""
    if not name or len(name) > 255 or not name.isprintable():
        raise InvalidRequest(
            "The file's name must have 1 to 255 printable characters.", param="file"
        )
    return name
