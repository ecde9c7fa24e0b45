"""Queries over kept responses."""

import re
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import TenantRepository
from gateway.responses.models import ResponseRetention, StoredResponse

_ID = re.compile(r"resp_[0-9a-f]{32}")


class ResponseRepository(TenantRepository[StoredResponse]):
    rows = StoredResponse

    async def one(self, response: str, now: datetime) -> StoredResponse | None:
        """An expired one is gone, whether it was swept away yet or not."""
        if not _ID.fullmatch(response):
            return None
        found: StoredResponse | None = await self._session.scalar(
            self.mine().where(StoredResponse.id == response, StoredResponse.expires_at > now)
        )
        return found

    async def put(self, row: StoredResponse) -> None:
        """Of two under one id the later stays: a line of a batch may be answered again."""
        assert row.project_id == self.project
        await self._session.merge(row)

    async def remove(self, row: StoredResponse) -> None:
        await self._session.delete(row)


class RetentionRepository(TenantRepository[ResponseRetention]):
    rows = ResponseRetention

    async def days(self) -> int | None:
        """None: as the server keeps them."""
        row: ResponseRetention | None = await self._session.scalar(self.mine())
        return None if row is None else row.days

    async def set(self, days: int) -> None:
        await self._session.merge(ResponseRetention(project_id=self.project, days=days))


class ResponsesRepository:
    """For the sweep, which sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def forget_expired(self, now: datetime, most: int) -> int:
        """Returns how many."""
        some = select(StoredResponse.id).where(StoredResponse.expires_at <= now).limit(most)
        gone = (await self._session.scalars(some)).all()
        if gone:
            await self._session.execute(delete(StoredResponse).where(StoredResponse.id.in_(gone)))
        return len(gone)
