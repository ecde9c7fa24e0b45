"""Days of the ledger that are old enough to go: whole partitions, and what they held in sums."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.usage.event import EPOCH, month_of
from gateway.usage.models import ClosedPeriod, DroppedUsage, RollupWatermark, UsageEvent

# The days that have partitions, from their names.
PARTITIONS = text(
    "SELECT to_date(right(c.relname, 8), 'YYYYMMDD') FROM pg_inherits"
    " JOIN pg_class c ON c.oid = inhrelid JOIN pg_class p ON p.oid = inhparent"
    " WHERE p.relname = 'usage_event' AND c.relname ~ '^usage_event_[0-9]{8}$' ORDER BY 1"
)


class RetentionRepository:
    """For the settler, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._postgres = is_postgres(session)

    async def days_before(self, first_kept: date) -> Sequence[date]:
        """Oldest first."""
        if self._postgres:
            days = (await self._session.execute(PARTITIONS)).scalars()
        else:
            days = (await self._session.execute(select(UsageEvent.day).distinct())).scalars()
        return sorted(day for day in days if day < first_kept)

    async def is_settled(self, day: date) -> bool:
        """Its month is closed, and all of it is in the roll-ups."""
        if await self._session.get(ClosedPeriod, month_of(day)) is None:
            return False
        behind = (
            select(func.count())
            .select_from(UsageEvent)
            .outerjoin(RollupWatermark, RollupWatermark.log == UsageEvent.log)
            .where(UsageEvent.day == day)
            .where(UsageEvent.batch > func.coalesce(RollupWatermark.batch, 0))
        )
        return (await self._session.execute(behind)).scalar_one() == 0

    async def drop(self, day: date, now: datetime) -> None:
        """In one transaction with what it held."""
        await self._keep_sums(day, now)
        if not self._postgres:
            await self._session.execute(delete(UsageEvent).where(UsageEvent.day == day))
            return
        # Another gateway may have been quicker.
        await self._session.execute(text(f"DROP TABLE IF EXISTS usage_event_{day:%Y%m%d}"))

    async def kept_from(self) -> datetime:
        """From then on every event is there."""
        last = (await self._session.execute(select(func.max(DroppedUsage.day)))).scalar_one()
        return datetime.combine(last + timedelta(days=1) if last else EPOCH.date(), time(), UTC)

    async def dropped(self) -> tuple[int, int]:
        """Events and nano-dollars, of all days that went."""
        gone = DroppedUsage
        statement = select(func.sum(gone.events), func.sum(gone.cost_nano))
        events, nano = (await self._session.execute(statement)).one()
        return int(events or 0), int(nano or 0)

    async def _keep_sums(self, day: date, now: datetime) -> None:
        held = (
            select(UsageEvent.period, func.count(), func.sum(UsageEvent.cost_nano))
            .where(UsageEvent.day == day)
            .group_by(UsageEvent.period)
        )
        insert = postgresql.insert if self._postgres else sqlite.insert
        for period, events, nano in (await self._session.execute(held)).all():
            made = insert(DroppedUsage).values(
                day=day, period=period, events=events, cost_nano=int(nano or 0), dropped_at=now
            )
            added = {
                name: getattr(DroppedUsage, name) + made.excluded[name]
                for name in ("events", "cost_nano")
            }
            await self._session.execute(
                made.on_conflict_do_update(index_elements=["day", "period"], set_=added)
            )
