"""Requests go to engines that are there, and to another where one refused or was lost too early."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from engine.protocol import VERSION, Drain, RefusalCode
from gateway.errors import NoEngine
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.fleet.router import Wish
from tests.fakes.clock import until
from tests.fakes.engine import BASE as FAKE_BASE
from tests.fakes.engine import FakeEngine
from tests.gateway.serving import BASE, ask, post, serving

ASKED = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}]}


def test_a_fleet_without_a_connection_has_no_engine():
    fleet = Fleet(Static(("unix:/nowhere",)), gateway="g")
    with pytest.raises(NoEngine):
        fleet.first.choose(Wish())
    with pytest.raises(NoEngine):
        _ = fleet.first.context


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
        assert server.routes._do.fleet.first.context == 200


async def test_an_engine_lost_before_it_said_anything_is_replaced_and_billed_once(tmp_path):
    async with serving(tmp_path, engines=2) as server:

        def die_at_first(submit):
            for engine in server.engines:
                engine.knobs.die_after = None if "+" in submit.request else 0
            return [5, 6, 7]

        server.script(die_at_first)
        got = await ask(server.port, post(ASKED))
        assert got.status == 200, got.body
        submits = [submit for engine in server.engines for submit in engine.submitted]
        first, second = sorted(submits, key=lambda submit: len(submit.request))
        assert second.request == f"{first.request}+1"
        assert second.tokens == first.tokens
        assert second.deadline_ms <= first.deadline_ms
        assert [ended.outcome for ended in server.recorder.ended] == ["completed"]


async def test_an_engine_lost_after_a_token_is_told_and_not_replaced(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        server.say("one two three four")
        for engine in server.engines:
            engine.knobs.die_after = 2
        got = await ask(server.port, post(ASKED))
        assert (got.status, got.error["code"]) == (503, "engine_lost")
        assert sum(len(engine.submitted) for engine in server.engines) == 1
        (ended,) = server.recorder.ended
        assert (ended.outcome, ended.completion_tokens) == ("engine_lost", 2)


async def test_a_request_whose_every_engine_is_lost_is_told_after_three(tmp_path):
    async with serving(tmp_path, engines=4) as server:
        for engine in server.engines:
            engine.knobs.die_after = 0
        got = await ask(server.port, post(ASKED))
        assert (got.status, got.error["code"]) == (503, "engine_lost")
        assert sum(len(engine.submitted) for engine in server.engines) == 3


async def test_an_engine_that_drains_gets_nothing_new_and_finishes_what_it_has(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        server.say("ok ok ok ok")
        for engine in server.engines:
            engine.knobs.token_delay_s = 0.05
        running = asyncio.create_task(ask(server.port, post(ASKED)))
        await until(lambda: any(engine.open for engine in server.engines))
        leaving, staying = sorted(server.engines, key=lambda engine: -engine.open)
        member = next(m for m in server.routes._do.fleet.members if m.name == leaving.address)
        member.client.tell(Drain())
        await until(lambda: member.draining)
        assert (await ask(server.port, post(ASKED))).status == 200
        assert (len(leaving.submitted), len(staying.submitted)) == (1, 1)
        assert (await running).status == 200
        await until(lambda: member.client is None)


@asynccontextmanager
async def running(fleet):
    task = asyncio.create_task(fleet.run())
    try:
        yield fleet
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_an_engine_whose_loop_stands_still_is_passed_over_and_then_lost(tmp_path):
    async with FakeEngine(f"unix:{tmp_path}/e.sock") as engine:
        engine.knobs.still = True
        async with running(Fleet(Static((engine.address,)), gateway="g", silence_s=0.3)) as fleet:
            (member,) = fleet.members
            await until(lambda: member.late)
            assert member.takes
            assert not member.usable
            assert fleet.first.choose(Wish()) is member  # better than nobody
            await until(lambda: "silent for 0.3 s" in member.reason)
            engine.knobs.still = False
            await until(lambda: member.usable)
            await asyncio.sleep(0.1)
            assert not member.late


async def test_an_engine_of_another_version_is_refused_by_name(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("engine.client.VERSION", 99)
    monkeypatch.setattr("tests.fakes.engine.Hello", type("Never", (), {}))
    address = f"unix:{tmp_path}/e.sock"
    fleet = Fleet(Static((address,)), gateway="g")
    async with FakeEngine(address), running(fleet):
        (member,) = fleet.members
        await until(lambda: bool(member.unfit))
        said = f"the engine speaks version {VERSION} of the protocol, this gateway 99"
        assert said in member.unfit
        assert address in caplog.text
        assert fleet.ready == []


async def test_an_engine_that_is_not_there_is_named_once(tmp_path, caplog):
    address = f"unix:{tmp_path}/nobody.sock"
    async with running(Fleet(Static((address,)), gateway="g")):
        await until(lambda: address in caplog.text)
    (said,) = (each.getMessage() for each in caplog.records if address in each.getMessage())
    assert said.count(address) == 1


async def test_engines_of_several_bases_are_kept_apart(tmp_path):
    import msgspec

    bases = {name: msgspec.structs.replace(FAKE_BASE, fingerprint=name * 8) for name in "abc"}
    async with (
        FakeEngine(f"unix:{tmp_path}/a.sock", base=bases["a"]) as first,
        FakeEngine(f"unix:{tmp_path}/b.sock", base=bases["b"], max_model_len=99) as second,
        FakeEngine(f"unix:{tmp_path}/c.sock", base=bases["c"]) as foreign,
    ):
        addresses = (first.address, second.address, foreign.address)
        known = {"one": "a" * 8, "two": "b" * 8}
        async with running(Fleet(Static(addresses), gateway="g", bases=known)) as fleet:
            await until(lambda: all(member.client for member in fleet.members))
            assert fleet.of("one").choose(Wish()).name == first.address
            assert fleet.of("two").choose(Wish()).name == second.address
            assert (fleet.of("one").context, fleet.of("two").context) == (4096, 99)
            assert "fingerprint cccccccc" in fleet.members[2].unfit
            assert len(fleet.ready) == 2
