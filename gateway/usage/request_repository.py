"""Requests of one organisation as the ledger has them, newest first, a page at a time.

A page begins after a ``Place``, the last request of the page before, so it costs the same however
far back it lies, and a request that comes meanwhile moves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.usage.event import Kind
from gateway.usage.models import Price, UsageEvent
from gateway.usage.report_repository import Window


@dataclass(frozen=True, slots=True)
class Place:
    """Of a request, among all there are."""

    started_at: datetime
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of the requests that began in the window; "" means all. Fields are the columns."""

    window: Window
    project_id: str = ""
    key_id: str = ""
    model: str = ""
    user_id: str = ""
    outcome: str = ""
    endpoint: str = ""

    def values(self) -> dict[str, str]:
        names = ("project_id", "key_id", "model", "user_id", "outcome", "endpoint")
        return {name: value for name in names if (value := getattr(self, name))}


class RequestRepository:
    """Every select starts from the organisation's own events."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    async def newest_first(
        self, most: int, wanted: Wanted, *, after: Place | None = None
    ) -> Sequence[UsageEvent]:
        event, window = UsageEvent, wanted.window
        # The day comes first, though the time says it: partitions and the index are in its order.
        order = (event.day, event.started_at, event.id)
        statement = (
            self._mine()
            .where(event.kind == Kind.USAGE)
            .where(event.day >= window.start.astimezone(UTC).date())
            .where(event.day <= window.end.astimezone(UTC).date())
            .where(event.started_at >= window.start, event.started_at < window.end)
            .where(*(getattr(event, name) == value for name, value in wanted.values().items()))
            .order_by(*(column.desc() for column in order))
            .limit(most)
        )
        if after is not None:
            day = after.started_at.astimezone(UTC).date()
            statement = statement.where(event.day <= day).where(
                tuple_(*order) < tuple_(day, after.started_at, after.id)
            )
        return (await self._session.scalars(statement)).all()

    async def one(self, request: str) -> UsageEvent | None:
        """None also for another organisation's."""
        statement = self._mine().where(UsageEvent.id == request, UsageEvent.kind == Kind.USAGE)
        return (await self._session.scalars(statement)).one_or_none()

    async def adjustments(self, request: str) -> Sequence[UsageEvent]:
        """Of its cost, oldest first."""
        statement = self._mine().where(UsageEvent.corrects == request)
        return (await self._session.scalars(statement.order_by(UsageEvent.started_at))).all()

    async def price(self, price_id: str) -> Price | None:
        return await self._session.get(Price, price_id)

    def _mine(self) -> Select[Any]:
        return select(UsageEvent).where(UsageEvent.organisation_id == self._organisation)
