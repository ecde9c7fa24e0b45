"""Deliveries of every sink, for the operator's commands."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.billing.models import SinkCustomer, SinkDelivery


class SinkRepository:
    """For the operator, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def summary(self) -> Sequence[Any]:
        """(sink, meter, state, deliveries, quantity, oldest, what one of them was told last)."""
        row = SinkDelivery
        keys = (row.sink, row.meter, row.state)
        statement = (
            select(
                *keys, func.count(), func.sum(row.quantity), func.min(row.at), func.max(row.detail)
            )
            .group_by(*keys)
            .order_by(*keys)
        )
        found = await self._session.execute(statement)
        return [(*each[:4], int(each[4]), *each[5:]) for each in found]

    def name(self, sink: str, organisation: str, customer: str, now: datetime) -> None:
        self._session.add(
            SinkCustomer(sink=sink, organisation_id=organisation, customer=customer, created_at=now)
        )
