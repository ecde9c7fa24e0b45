"""Routing prefers a warm engine, spills when it is busy, is stable under churn, and retries."""

from dataclasses import dataclass, field

import pytest

from engine.protocol import RefusalCode
from gateway.errors import NoEngine
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.fleet.router import choose
from tests.fakes.clock import until
from tests.gateway.serving import BASE, ask, post, serving

ASKED = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class FakeMember:
    name: str
    load: float = 0.0
    resident: set[str] = field(default_factory=set)


def test_prefers_an_engine_that_already_holds_the_adapter():
    cold, warm = FakeMember("a"), FakeMember("b", load=0.5, resident={"d1"})
    assert choose([cold, warm], "d1") is warm


def test_spills_to_a_colder_engine_when_the_warm_one_is_saturated():
    cold, warm = FakeMember("a", load=0.2), FakeMember("b", load=0.97, resident={"d1"})
    assert choose([cold, warm], "d1") is cold


def test_takes_the_least_loaded_of_several_warm_ones():
    busy, idle = FakeMember("a", 0.5, {"d1"}), FakeMember("b", 0.1, {"d1"})
    assert choose([busy, idle], "d1") is idle


def test_the_base_goes_to_the_least_loaded():
    busy, idle = FakeMember("a", load=0.5, resident={"d1"}), FakeMember("b", load=0.1)
    assert choose([busy, idle], None) is idle


def test_when_all_are_saturated_the_least_loaded_takes_it():
    full, fuller = FakeMember("a", load=0.95), FakeMember("b", load=0.99, resident={"d1"})
    assert choose([full, fuller], "d1") is full


def test_removing_an_engine_moves_only_its_own_adapters():
    fleet = [FakeMember(name) for name in "abcdef"]
    for digest in map(str, range(200)):
        before, after = choose(fleet, digest), choose(fleet[:-1], digest)
        assert after is before or before is fleet[-1]


def test_adapters_spread_over_the_engines():
    fleet = [FakeMember(name) for name in "abcd"]
    counts = [sum(choose(fleet, str(d)) is member for d in range(400)) for member in fleet]
    assert min(counts) > 50


def test_a_fleet_without_a_connection_has_no_engine():
    fleet = Fleet(Static(("unix:/nowhere",)), gateway="g")
    with pytest.raises(NoEngine):
        fleet.choose(None)
    with pytest.raises(NoEngine):
        _ = fleet.context


async def test_a_request_that_one_engine_refuses_goes_to_another(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        server.say("ok")
        for refusing, serving_engine in (server.engines, server.engines[::-1]):
            refusing.knobs.refuse = RefusalCode.QUEUE_FULL
            serving_engine.knobs.refuse = None
            got = await ask(server.port, post(ASKED))
            assert got.status == 200
            assert serving_engine.submitted
        assert all(ended.outcome == "completed" for ended in server.recorder.ended)


async def test_a_request_that_every_engine_refuses_is_refused_once(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        for engine in server.engines:
            engine.knobs.refuse = RefusalCode.DRAINING
        assert (await ask(server.port, post(ASKED))).status == 503
        assert [len(engine.submitted) for engine in server.engines] == [1, 1]


async def test_an_adapter_goes_where_it_is_resident(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        server.say("ok")
        for warm, cold in (server.engines, server.engines[::-1]):
            warm.resident, cold.resident = ["d" * 64], []
            for engine in server.engines:
                engine.push_load()
            members = {m.name: m for m in server.routes._do.fleet.members}
            await until(lambda w=warm, m=members: "d" * 64 in m[w.address].resident)
            await until(lambda c=cold, m=members: not m[c.address].resident)
            before = len(warm.submitted)
            await ask(server.port, post({**ASKED, "model": "support"}))
            assert len(warm.submitted) == before + 1


async def test_the_smaller_context_of_two_engines_holds(tmp_path):
    async with serving(tmp_path, engines=2, context=200) as server:
        assert server.routes._do.fleet.context == 200
