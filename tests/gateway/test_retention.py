"""Old days of the ledger go whole, once they are billed and added up, and the books still agree."""

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import text

from engine.protocol import Counts
from gateway.config import ConfigError, Settings
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import Price
from gateway.usage.reconcile import Reconciliation
from gateway.usage.recorder import Recorder
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository
from gateway.usage.retention import Retention
from gateway.usage.rollups import Rollups
from gateway.usage.service import close_period
from tests.gateway.test_ledger import finished, started

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SEPTEMBER, OCTOBER = date(2026, 9, 1), date(2026, 10, 1)


class Books:
    def __init__(self, database, recorder) -> None:
        self.database, self.recorder = database, recorder
        self.ledger = Ledger(recorder.log, database, live_from=recorder.first_segment)
        self.retention = Retention(database, 35, lambda: NOW)

    async def serve(self, day: date, *names: str) -> None:
        at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        for name in names:
            await self.recorder.started(started(name, at_ns=int(at.timestamp()) * 10**9))
            await self.recorder.finished(finished(name))
        await self.ledger.settle()

    async def close(self, month: date) -> None:
        async with self.database.unit_of_work() as session:
            await close_period(session, month, NOW)

    async def events(self) -> list[str]:
        async with self.database.reading() as session:
            query = text("SELECT id FROM usage_event ORDER BY id")
            return list((await session.execute(query)).scalars())

    async def differences(self, recorded=None) -> list[str]:
        proof = Reconciliation(self.database, now=NOW.timestamp())
        return [str(each) for each in (await proof.run(recorded)).differences]

    async def total(self) -> tuple[int, int]:
        async with self.database.reading() as session:
            usage = await UsageReport(session, "org_1").total(EVER)
        return usage.requests, usage.cost.total


@pytest.fixture
async def books(database, tmp_path):
    async with database.unit_of_work() as session:
        LedgerRepository(session).add_price(
            Price(id="prc_1", base_model="smol", input_pico=1_000, cached_input_pico=1_000,
                  output_pico=1_000, effective_from=NOW - timedelta(days=300), created_at=NOW)
        )  # fmt: skip
    recorder = await Recorder.open(UsageLog(tmp_path / "usage"))
    yield Books(database, recorder)
    await recorder.close()


async def test_days_of_closed_months_go_and_totals_bills_and_proofs_stay(books):
    await books.serve(date(2026, 9, 29), "req_1", "req_2")
    await books.serve(date(2026, 9, 30), "req_3")
    await books.serve(date(2026, 10, 2), "req_4")
    await books.serve(date(2026, 11, 29), "req_5")
    await Rollups(books.database).roll_up()
    assert await books.retention.drop() == []  # no month is closed
    await books.close(SEPTEMBER)
    before = await books.total()
    assert await books.retention.drop() == [date(2026, 9, 29), date(2026, 9, 30)]
    assert await books.events() == ["req_4", "req_5"]
    assert await books.total() == before == (5, 5 * 17)
    assert await books.differences() == []
    assert await books.retention.drop() == []
    await books.close(OCTOBER)
    assert await books.retention.drop() == [date(2026, 10, 2)]
    assert await books.differences() == []


async def test_what_is_not_in_the_roll_ups_stays(books):
    await books.serve(date(2026, 9, 29), "req_1")
    await books.close(SEPTEMBER)
    assert await books.retention.drop() == []
    await Rollups(books.database).roll_up()
    assert await books.retention.drop() == [date(2026, 9, 29)]


async def test_an_event_that_comes_after_its_day_went_is_kept_billed_and_counted(books):
    await books.serve(date(2026, 9, 29), "req_1")
    await Rollups(books.database).roll_up()
    await books.close(SEPTEMBER)
    await books.retention.drop()
    books.ledger = Ledger(
        books.recorder.log, books.database, live_from=books.recorder.first_segment
    )
    await books.serve(date(2026, 9, 29), "req_2")  # billed in October, the next open month
    await Rollups(books.database).roll_up()
    assert await books.events() == ["req_2"]
    assert await books.total() == (2, 34)
    assert await books.differences() == []
    await books.close(OCTOBER)
    assert await books.retention.drop() == [date(2026, 9, 29)]
    assert await books.differences() == []


async def test_a_roll_up_that_was_tampered_with_shows_after_its_day_went_too(books):
    await books.serve(date(2026, 9, 29), "req_1")
    await Rollups(books.database).roll_up()
    await books.close(SEPTEMBER)
    await books.retention.drop()
    async with books.database.unit_of_work() as session:
        await session.execute(text("UPDATE usage_rollup SET output_nano = output_nano + 1"))
    differences = await books.differences()
    assert any(
        each.startswith("dropped days: nano-dollars before 2026-09-30") for each in differences
    )


async def test_what_an_engine_remembers_of_a_day_that_went_is_no_difference(books):
    at = int(datetime(2026, 9, 29, 12, tzinfo=UTC).timestamp() * 1000)
    name = f"req_{at:012x}70008000000000000000"
    await books.serve(date(2026, 9, 29), name)
    await Rollups(books.database).roll_up()
    await books.close(SEPTEMBER)
    await books.retention.drop()
    assert await books.differences({name: Counts(name, "b1", 10, 7, True)}) == []


async def test_gateways_that_drop_at_once_drop_once(books):
    days = [date(2026, 9, 1) + timedelta(days=n) for n in range(4)]
    for n, day in enumerate(days):
        await books.serve(day, f"req_{n}")
    await Rollups(books.database).roll_up()
    await books.close(SEPTEMBER)
    gone = await asyncio.gather(*(books.retention.drop() for _ in range(3)))
    gone += [await books.retention.drop()]
    assert sorted({day for each in gone for day in each}) == days
    assert await books.events() == []
    assert await books.differences() == []


def test_a_month_must_be_over_before_its_events_go(tmp_path):
    with pytest.raises(ConfigError, match="usage_retention_days=34"):
        Settings(data_dir=tmp_path, model_dir=tmp_path, served_model_name="m",
                 engines=("unix:/x",), usage_retention_days=34)  # fmt: skip
