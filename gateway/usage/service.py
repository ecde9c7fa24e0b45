"""Prices: set from a time on, never changed. Runs inside the caller's unit of work."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.ids import new_id
from gateway.usage.models import Price
from gateway.usage.pricing import pico_per_token
from gateway.usage.repository import LedgerRepository


class PriceList:
    def __init__(self, session: AsyncSession, now: datetime) -> None:
        self._rows = LedgerRepository(session)
        self._now = now

    async def ensure(self, base_model: str, prices: tuple[str, str, str]) -> None:
        """Set a base model's first price; see ``set`` for the units."""
        if not any(row.base_model == base_model for row in await self._rows.prices()):
            self.set(base_model, prices)

    def set(self, base_model: str, prices: tuple[str, str, str]) -> Price:
        """Dollars per million input, cached input and output tokens, from now on.

        Raises InvalidRequest.
        """
        given, cached, output = prices
        price = Price(
            id=new_id("prc"),
            base_model=base_model,
            adapter_id=None,
            input_pico=pico_per_token(given, param="input"),
            cached_input_pico=pico_per_token(cached, param="cached_input"),
            output_pico=pico_per_token(output, param="output"),
            effective_from=self._now,
            created_at=self._now,
        )
        self._rows.add_price(price)
        return price
