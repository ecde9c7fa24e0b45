"""What a checkup asks of the database."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.models import LogPosition, Price, RollupWatermark, UsageEvent


class CheckupRepository:
    """For the operator, who sees every tenant. Reads only."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def version(self) -> str:
        name = "server_version" if is_postgres(self._session) else "sqlite_version()"
        asked = f"SHOW {name}" if is_postgres(self._session) else f"SELECT {name}"
        return str((await self._session.execute(text(asked))).scalar_one())

    async def revision(self) -> str | None:
        """Of the migrations."""
        found = await self._session.execute(text("SELECT version_num FROM alembic_version"))
        return found.scalar_one_or_none()

    async def clock(self) -> datetime:
        """The database's own; SQLite has ours."""
        if not is_postgres(self._session):
            return datetime.now(UTC)
        now: datetime = (await self._session.execute(select(func.clock_timestamp()))).scalar_one()
        return now

    async def unpriced_models(self, since: datetime) -> Sequence[Any]:
        """(model, requests) that nobody has priced."""
        event = UsageEvent
        statement = (
            select(event.base_model, func.count())
            .where(event.day >= since.date(), event.price_id.is_(None), event.kind == "usage")
            .group_by(event.base_model)
        )
        return (await self._session.execute(statement)).all()

    async def price_count(self) -> int:
        return (await self._session.execute(select(func.count()).select_from(Price))).scalar_one()

    async def batches_behind(self) -> int:
        """Of the logs, those that are not in the roll-ups yet."""
        rolled = func.coalesce(RollupWatermark.batch, 0)
        statement = select(func.sum(LogPosition.batch - rolled)).outerjoin(
            RollupWatermark, RollupWatermark.log == LogPosition.log
        )
        return int((await self._session.execute(statement)).scalar_one() or 0)
