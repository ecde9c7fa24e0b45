"""Billing systems get every event of the ledger once, whatever they answer and whoever dies."""

from datetime import datetime, timedelta

import httpx2
import pytest
from sqlalchemy import text

from gateway.billing.cloud_events import CloudEventSink
from gateway.billing.models import SinkCustomer
from gateway.billing.outbox import BillingOutbox
from gateway.billing.sink import Verdict
from gateway.billing.sinks import read_sinks
from gateway.billing.stripe import StripeSink
from gateway.config import ConfigError, Secret
from gateway.identity.models import Organisation
from tests.billing.sink_servers import TOKEN, OpenMeterServer, StripeServer, served
from tests.gateway.test_books import NOON, Books


class Killed(Exception):
    pass


COST = 17_000  # nano-dollars of a request


class World:
    """Books, a sink's server, and an outbox between them, on one clock."""

    def __init__(self, database, folder, kind: str) -> None:
        self.database, self.kind, self.now = database, kind, NOON + timedelta(minutes=7)
        self.books = Books(database, folder)
        self.server = {"stripe": StripeServer, "openmeter": OpenMeterServer}[kind](
            lambda: self.now.timestamp()
        )

    @property
    def sink(self):
        url, token = self.server.url, Secret(TOKEN)
        if self.kind == "stripe":
            meters = {"cost_nano_usd": "loratorio_cost"}
            return StripeSink(name="s", url=url, token=token, meters=meters)
        return CloudEventSink(name="s", url=url, token=token)

    def outbox(self, sink=None) -> BillingOutbox:
        return BillingOutbox(self.database, sink or self.sink, now=self.clock)

    def clock(self) -> datetime:
        return self.now

    async def round(self, after: timedelta = timedelta(), sink=None) -> None:
        self.now += after
        async with httpx2.AsyncClient(timeout=0.3, trust_env=False) as client:
            await self.outbox(sink).round(client)

    async def states(self) -> dict[str, int]:
        async with self.database.reading() as session:
            query = text("SELECT state, count(*) FROM sink_delivery GROUP BY state")
            return dict((await session.execute(query)).all())

    async def name(self, customer: str = "cus_1") -> None:
        async with self.database.unit_of_work() as session:
            session.add(Organisation(id="org_1", name="acme", created_at=NOON))
            await session.flush()
            session.add(
                SinkCustomer(sink="s", organisation_id="org_1", customer=customer, created_at=NOON)
            )


@pytest.fixture
async def world(database, backend, tmp_path):
    """Each sink with one of the databases: what they are told does not depend on it."""
    kind = {"sqlite": "openmeter", "postgres": "stripe"}[backend]
    world = World(database, tmp_path, kind)
    await world.books.price("1")
    await world.books.serve("req_before")  # from before the sink was known: not sent
    await world.name()
    async with served(world.server):
        await world.round()
        yield world


async def test_every_event_is_counted_once(world):
    await world.books.serve("req_1", "req_2")
    await world.round()
    await world.round()
    assert world.server.sum() == 2 * COST
    await world.books.serve("req_3")
    await world.round(timedelta(minutes=1))
    assert world.server.sum() == 3 * COST
    assert set(await world.states()) == {"taken"}


async def test_failures_are_tried_again_at_growing_intervals_and_counted_once(world):
    await world.books.serve("req_1")
    world.server.faults.planned = [429, 503, 401, "drop", "lost", "slow"]
    for left in (5, 4, 3, 2, 1, 0):
        await world.round(timedelta(minutes=4))
        assert len(world.server.faults.planned) == left
        assert await world.states() == {"pending": 1}
        await world.round(timedelta(seconds=1))  # too early
        assert len(world.server.faults.planned) == left
    await world.round(timedelta(minutes=8))
    assert await world.states() == {"taken": 1}
    assert world.server.sum() == COST


async def test_what_is_sent_again_is_what_was_sent_before(world):
    await world.books.serve("req_1")
    world.server.faults.planned = ["lost"]
    await world.round()
    await world.books.price("9")  # the same requests are worth something else by now
    await world.books.reprice()
    await world.books.serve("req_2")
    await world.round(timedelta(minutes=1))
    # req_1 at 17, its and req_before's corrections, and req_2 at the new price
    assert world.server.sum() == COST + 2 * 8 * COST + 9 * COST


@pytest.mark.parametrize("taken", [True, False])
async def test_past_the_window_the_sink_is_asked_before_it_is_sent_again(world, taken):
    await world.books.serve("req_0")
    await world.round()
    await world.books.serve("req_1")
    world.server.faults.planned = ["lost" if taken else "drop"]
    await world.round()
    world.server.faults.planned = []
    before = world.server.requests
    if world.kind == "stripe":
        world.server.known.clear()  # it would count the same identifier again
    await world.round(world.sink.window + timedelta(hours=1))
    assert world.server.requests > before
    await world.round(timedelta(minutes=1))
    assert world.server.sum() == 2 * COST
    assert set(await world.states()) == {"taken"}


async def test_a_gateway_that_dies_after_sending_leaves_no_double(world):
    await world.books.serve("req_1")

    class Dying:
        def __init__(self, sink) -> None:
            self._sink = sink

        def __getattr__(self, name):
            return getattr(self._sink, name)

        async def send(self, client, delivery) -> Verdict:
            await self._sink.send(client, delivery)
            raise Killed

    with pytest.raises(Killed):
        await world.round(sink=Dying(world.sink))
    assert await world.states() == {"pending": 1}
    await world.round(timedelta(minutes=1))
    assert await world.states() == {"taken": 1}
    assert world.server.sum() == COST


async def test_what_a_sink_refuses_for_good_is_kept_and_told(world, caplog):
    await world.books.serve("req_1")
    world.server.faults.planned = [422]
    await world.round()
    assert await world.states() == {"refused": 1}
    assert "refuses" in caplog.text
    assert TOKEN not in caplog.text


async def test_stripe_gets_nothing_of_an_organisation_until_it_has_a_name_there(database, tmp_path):
    world = World(database, tmp_path, "stripe")
    await world.books.price("1")
    async with served(world.server):
        await world.round()
        await world.books.serve("req_1")
        await world.round()
        assert (await world.states(), world.server.events) == ({"held": 1}, [])
        await world.name()
        await world.round()
    assert await world.states() == {"taken": 1}
    assert world.server.sum() == COST


async def test_a_correction_of_a_price_takes_off_what_was_too_much(world):
    await world.books.price("3")
    await world.books.serve("req_1")
    await world.round()
    await world.books.price("1")
    await world.books.reprice()
    await world.round(timedelta(minutes=1))
    assert world.server.sum() == COST  # req_before was charged by 1 from the start


async def test_an_organisation_finds_its_tokens_in_a_cloud_event(database, tmp_path):
    world = World(database, tmp_path, "openmeter")
    await world.books.price("1")
    async with served(world.server):
        await world.round()
        await world.books.serve("req_1", "req_2")
        await world.round()
    [event] = {e["id"]: e for e in world.server.events.values()}.values()
    assert event["subject"] == "org_1"
    assert event["data"] == {
        "project": "prj_1", "model": "smol", "adapter": "", "requests": "2",
        "input_tokens": "12", "cached_input_tokens": "8", "output_tokens": "14",
        "cost_nano_usd": "34000",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ('[{"name":"a","kind":"lago","url":"https://x.example"}]', "kind 'lago' is neither"),
        ('[{"name":"a","kind":"stripe","token":"t"}]', "meters: name at least one"),
        ('[{"name":"a","kind":"stripe","token":"t","meters":{"x":"y"}}]', "'x' is none of"),
        ('[{"name":"a","kind":"stripe","meters":{"requests":"y"}}]', "token is missing"),
        (r'[{"name":"a","kind":"stripe","token":"sk\n"}]', "token: printable ASCII"),
        ('[{"name":"a","kind":"cloudevents","url":"http://a","token":"ä"}]', "token: printable"),
        ('[{"name":"a","kind":"cloudevents","url":"http://["}]', "url='http"),
        ('[{"name":"a","kind":"cloudevents"}]', "url"),
        ('[{"name":"a","kind":"cloudevents","url":"https://x.example","tokn":"t"}]', "tokn"),
        ('[{"name":"","kind":"cloudevents"}]', "name must have"),
        ("[{", "sinks"),
    ],
)
def test_a_wrong_file_of_sinks_is_said_with_entry_and_field(tmp_path, entries, said):
    file = tmp_path / "sinks.json"
    file.write_text(entries)
    with pytest.raises(ConfigError, match=said):
        read_sinks(file)
