"""Days of the ledger on Postgres, which several gateways make at once."""

import asyncio
from datetime import date, timedelta

import asyncpg
import pytest

from tests.services import postgres

__all__ = ["postgres"]


@pytest.mark.slow
async def test_several_gateways_may_make_the_same_day(postgres):
    url = (await asyncio.to_thread(postgres.migrated)).replace("+asyncpg", "")
    connections = [await asyncpg.connect(url) for _ in range(3)]
    try:
        for number in range(8):
            day = date(2031, 1, 1) + timedelta(days=number)
            await asyncio.gather(
                *(each.execute("SELECT usage_partition($1)", day) for each in connections)
            )
        made = "SELECT count(*) FROM pg_class WHERE relname LIKE 'usage\\_event\\_203101__'"
        assert await connections[0].fetchval(made) == 8
        for number in range(8):
            await connections[0].execute(f"DROP TABLE usage_event_2031010{number + 1}")
    finally:
        for each in connections:
            await each.close()
