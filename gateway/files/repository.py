"""Queries over files."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import TenantRepository
from gateway.files.models import StoredFile
from gateway.files.store import is_file_id
from gateway.identity.models import Project


class FileRepository(TenantRepository[StoredFile]):
    rows = StoredFile

    async def one(self, file: str, now: datetime, *, lock: bool = False) -> StoredFile | None:
        """An expired one is gone, whether it was swept away yet or not. ``lock``: to change it."""
        if not is_file_id(file):
            return None
        statement = self.mine().where(StoredFile.id == file, StoredFile.expires_at > now)
        if lock:
            statement = statement.with_for_update()
        found: StoredFile | None = await self._session.scalar(statement)
        return found

    async def page(
        self,
        now: datetime,
        *,
        most: int,
        newest_first: bool,
        after: str | None,
        purpose: str | None,
    ) -> Sequence[StoredFile]:
        """Ids rise with time, so that they are the order."""
        statement = self.mine().where(StoredFile.expires_at > now)
        if purpose is not None:
            statement = statement.where(StoredFile.purpose == purpose)
        statement = _after(statement, after, newest_first)
        return (await self._session.scalars(statement.limit(most))).all()

    async def held(self) -> tuple[int, int]:
        """How many, and their bytes. Whoever asks is alone with the answer until the end."""
        await self._session.execute(
            select(Project.id).where(Project.id == self.project).with_for_update()
        )
        statement = select(func.count(), func.coalesce(func.sum(StoredFile.nbytes), 0)).where(
            StoredFile.project_id == self.project
        )
        count, nbytes = (await self._session.execute(statement)).one()
        return int(count), int(nbytes)

    async def remove(self, row: StoredFile) -> None:
        await self._session.delete(row)


def _after(
    statement: Select[StoredFile], after: str | None, newest_first: bool
) -> Select[StoredFile]:
    column: Any = StoredFile.id
    if newest_first:
        statement = statement.where(column < after) if after else statement
        return statement.order_by(column.desc())
    statement = statement.where(column > after) if after else statement
    return statement.order_by(column)


class FilesRepository:
    """For the sweep, which sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def expired(self, now: datetime, most: int) -> Sequence[str]:
        statement = select(StoredFile.id).where(StoredFile.expires_at <= now).limit(most)
        return (await self._session.scalars(statement)).all()

    async def known(self, files: Sequence[str]) -> set[str]:
        statement = select(StoredFile.id).where(StoredFile.id.in_(files))
        return set((await self._session.scalars(statement)).all())

    async def forget(self, files: Sequence[str]) -> None:
        await self._session.execute(delete(StoredFile).where(StoredFile.id.in_(files)))
