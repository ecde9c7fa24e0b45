"""Prices are corrected by adjustments, closed months stay closed, and differences are found."""

from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import text

from engine.client import EngineClient
from engine.protocol import Counts
from gateway.errors import Conflict
from gateway.ids import new_id
from gateway.usage.event import open_period
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.reconcile import Reconciliation, merged
from gateway.usage.recorder import Recorder
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository
from gateway.usage.repricing import Repricing
from gateway.usage.rollups import Rollups
from gateway.usage.service import PriceList, close_period
from tests.fakes.engine import FakeEngine
from tests.gateway.test_ledger import NOON, NOON_NS, finished, started

LATER = NOON + timedelta(days=3)  # in December
NOVEMBER, DECEMBER, JANUARY = date(2026, 11, 1), date(2026, 12, 1), date(2027, 1, 1)


class Books:
    """One gateway's log and ledger, settled after every request."""

    def __init__(self, database, folder) -> None:
        self.database = database
        self.log = UsageLog(folder / "usage")

    async def serve(self, *requests: str, at: datetime = NOON, **changes) -> None:
        recorder = await Recorder.open(self.log)
        at_ns = NOON_NS + int((at - NOON).total_seconds()) * 10**9
        for request in requests:
            await recorder.started(started(request, at_ns=at_ns))
            await recorder.finished(finished(request, at_ns=at_ns + 1, **changes))
        await Ledger(self.log, self.database, live_from=recorder.first_segment).settle()
        await recorder.close()

    async def price(self, each: str, *, since: datetime = NOON - timedelta(days=1)) -> None:
        async with self.database.unit_of_work() as session:
            PriceList(session, LATER).set("smol", (each, each, each), effective_from=since)

    async def close(self, month: date, now: datetime = LATER) -> None:
        async with self.database.unit_of_work() as session:
            await close_period(session, month, now)

    async def reprice(self):
        return await Repricing(self.database, LATER).run(
            NOON - timedelta(days=1), NOON + timedelta(days=9)
        )

    async def costs(self) -> dict[str, int]:
        """By billing month."""
        async with self.database.reading() as session:
            lines = await UsageReport(session, "org_1").lines(EVER, ("period",))
        return {line.group[0]: line.usage.cost.total for line in lines}

    async def differences(self, recorded: dict[str, Counts] | None = None) -> list[str]:
        proof = Reconciliation(self.database, now=LATER.timestamp())
        return [str(each) for each in (await proof.run(recorded)).differences]


@pytest.fixture
def books(database, tmp_path) -> Books:
    return Books(database, tmp_path)


async def test_a_price_that_was_wrong_is_corrected_once(books):
    await books.price("1000")  # a thousand times too much: 17 tokens at 1,000,000 nano
    await books.serve("req_1", "req_2")
    assert await books.costs() == {"2026-11-01": 34_000_000}
    await books.price("1")
    assert (await books.reprice()).cost_nano == 34_000 - 34_000_000
    assert await books.costs() == {"2026-11-01": 34_000}
    again = await books.reprice()
    assert (again.adjustments, again.cost_nano) == (0, 0)
    await books.price("2")
    assert (await books.reprice()).adjustments == 2
    await Rollups(books.database).roll_up()
    assert await books.costs() == {"2026-11-01": 68_000}
    assert await books.differences() == []


async def test_what_had_no_price_is_priced_later(books):
    await books.serve("req_1")
    await books.price("1")
    await books.reprice()
    async with books.database.reading() as session:
        usage = await UsageReport(session, "org_1").total(EVER)
    assert (usage.requests, usage.unpriced, usage.cost.total) == (1, 0, 17_000)


async def test_a_closed_month_takes_nothing_more_and_the_next_open_one_does(books):
    await books.price("1")
    await books.serve("req_1")
    await books.close(NOVEMBER)
    await books.serve("req_late")
    assert await books.costs() == {"2026-11-01": 17_000, "2026-12-01": 17_000}
    await books.price("3")
    await books.reprice()
    assert await books.costs() == {"2026-11-01": 17_000, "2026-12-01": 17_000 + 68_000}
    await Rollups(books.database).roll_up()
    assert await books.differences() == []
    async with books.database.reading() as session:
        late = text("SELECT day, period FROM usage_event WHERE id = 'req_late'")
        day, period = (await session.execute(late)).one()
    assert (str(day), str(period)) == ("2026-11-30", "2026-12-01")


async def test_only_a_month_that_is_over_is_closed_and_only_once(books):
    with pytest.raises(Conflict, match="not over"):
        await books.close(DECEMBER)
    await books.close(NOVEMBER)
    with pytest.raises(Conflict, match="already"):
        await books.close(NOVEMBER)


def test_the_next_open_month_is_the_first_after_it_that_is_not_closed():
    assert open_period(date(2026, 11, 30), {NOVEMBER, DECEMBER}) == JANUARY
    assert open_period(date(2026, 11, 30), {DECEMBER}) == NOVEMBER


async def test_a_stream_over_the_end_of_a_month_belongs_to_the_month_it_began_in(books):
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    await books.price("1")
    await books.serve("req_1", at=midnight - timedelta(microseconds=1))
    await books.serve("req_2", at=midnight)
    assert await books.costs() == {"2026-11-01": 17_000, "2026-12-01": 17_000}


@pytest.mark.parametrize(
    ("tampering", "found"),
    [
        ("UPDATE usage_event SET completion_tokens = 8", "completion_tokens"),
        ("UPDATE usage_rollup SET requests = 2", "requests"),
        ("DELETE FROM usage_rollup", "events"),
        ("DELETE FROM usage_event", "events"),
    ],
)
async def test_every_tampering_is_found(books, tampering, found):
    await books.price("1")
    await books.serve("req_1")
    await Rollups(books.database).roll_up()
    assert await books.differences() == []
    async with books.database.unit_of_work() as session:
        await session.execute(text(tampering))
    assert any(found in each for each in await books.differences())


async def test_a_closed_month_that_changed_is_found(books):
    await books.price("1")
    await books.serve("req_1")
    await books.close(NOVEMBER)
    async with books.database.unit_of_work() as session:
        await session.execute(
            text("UPDATE usage_event SET cost_nano = cost_nano + 1, output_nano = output_nano + 1")
        )
    assert any("closed month" in each for each in await books.differences())


def counts(request: str, completion: int = 7, *, done: bool = True) -> Counts:
    return Counts(request, "b1", prompt_tokens=10, completion_tokens=completion, finished=done)


async def test_what_the_engine_says_is_what_is_billed(books):
    request = new_id("req")
    await books.serve(request, finish_reason="length")
    assert await books.differences({request: counts(request)}) == []
    assert "answer of" in (await books.differences({request: counts(request, 8)}))[0]
    assert "answer of" in (await books.differences({request: counts(request, 6)}))[0]


async def test_a_request_the_ledger_never_heard_of_is_found_unless_it_may_be_on_its_way(books):
    old, new = "req_" + "0" * 32, f"req_{int(LATER.timestamp() * 1000):012x}" + "0" * 20
    assert "not billed" in (await books.differences({old: counts(old)}))[0]
    assert await books.differences({new: counts(new)}) == []


async def test_a_request_billed_that_its_engine_does_not_know_is_found(books):
    first, second = sorted(new_id("req") for _ in range(2))
    await books.serve(first, second, finish_reason="length")
    (told,) = await books.differences({first: counts(first)})
    assert f"{second} is unknown" in told


async def test_tokens_past_a_stop_string_are_counted_and_no_difference(books):
    request = new_id("req")
    await books.serve(request)
    proof = Reconciliation(books.database, now=LATER.timestamp())
    found = await proof.run({request: counts(request, 9)})
    assert (found.differences, found.unbilled) == ([], {"past a stop string": 2})


def test_a_request_with_several_prompts_is_one_again():
    name = new_id("req")
    pages = [[counts(f"{name}-0", 3), counts(f"{name}-1", 4, done=False)], [counts("req_x")]]
    found = merged(pages)
    assert found[name] == Counts(name, "b1", 20, 7, False)
    assert set(found) == {name, "req_x"}


async def test_an_engine_is_asked_for_all_it_recorded(tmp_path):
    async with FakeEngine(f"unix:{tmp_path}/e.sock") as engine:
        engine.record = {f"r{i}": counts(f"r{i}") for i in range(5)}
        client = await EngineClient.connect(engine.address, gateway="test")
        async with client:
            assert [c.request for c in await client.recorded(3, 10)] == ["r3", "r4"]
            assert await client.recorded(5, 10) == []


async def test_adding_an_event_that_is_there_changes_nothing_even_its_month(books):
    await books.price("1")
    await books.serve("req_1")
    await books.close(NOVEMBER)
    async with books.database.unit_of_work() as session:
        from gateway.usage.log import Position

        await LedgerRepository(session).move(books.log.id, Position(0, 0))
    await Ledger(books.log, books.database).settle()
    assert await books.costs() == {"2026-11-01": 17_000}
    assert await books.differences() == []
