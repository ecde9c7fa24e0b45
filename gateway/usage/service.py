"""Prices, set from a time on and never changed, and the end of a month.

Runs inside the caller's unit of work.
"""

from datetime import date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import Conflict
from gateway.ids import new_id
from gateway.usage.event import next_month
from gateway.usage.models import ClosedPeriod, Price
from gateway.usage.pricing import DEFAULT_TIER, pico_per_token
from gateway.usage.repository import LedgerRepository


class PriceList:
    def __init__(self, session: AsyncSession, now: datetime) -> None:
        self._rows = LedgerRepository(session)
        self._now = now

    async def ensure(self, base_model: str, prices: tuple[str, str, str]) -> None:
        """Set a base model's first price; see ``set`` for the units."""
        if not any(row.base_model == base_model for row in await self._rows.prices()):
            self.set(base_model, prices)

    def set(
        self,
        base_model: str | None,
        prices: tuple[str, str, str],
        *,
        adapter_id: str | None = None,
        tier: str = DEFAULT_TIER,
        effective_from: datetime | None = None,
    ) -> Price:
        """Dollars per million input, cached input and output tokens.

        Of a base model, or of one adapter; from a time on, now unless it is given. One from the
        same time as an older one corrects it, for what comes: see ``Repricing`` for what came.
        Raises InvalidRequest.
        """
        given, cached, output = prices
        price = Price(
            id=new_id("prc"),
            base_model=None if adapter_id else base_model,
            adapter_id=adapter_id,
            tier=tier,
            input_pico=pico_per_token(given, param="input"),
            cached_input_pico=pico_per_token(cached, param="cached_input"),
            output_pico=pico_per_token(output, param="output"),
            effective_from=effective_from or self._now,
            created_at=self._now,
        )
        self._rows.add_price(price)
        return price


async def close_period(session: AsyncSession, period: date, now: datetime) -> ClosedPeriod:
    """No event enters this month from here on; late ones go into the next open one.

    Raises Conflict if it is closed already, or not over.
    """
    rows = LedgerRepository(session)
    await rows.take_periods()
    closed = {row.period for row in await rows.closed_periods()}
    if period in closed:
        raise Conflict(f"{period:%Y-%m} is closed already")
    if next_month(period) > now.date():
        raise Conflict(f"{period:%Y-%m} is not over")
    return await rows.close_period(period, now)
