"""Long prompts are computed by an engine that is there for them, if one is free, and whatever
becomes of it the client gets one answer and is billed once."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from engine.handing import GiverQueues
from engine.protocol import Cancel, Forgo, RefusalCode, Role
from gateway.fleet.handoffs import HandoffRule
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine
from tests.gateway.serving import BASE, Server, ask, post, raw, serving

LONG = {"model": BASE, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello " * 30}]}
SHORT = {"model": BASE, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
RULE = HandoffRule(least_tokens=60, queue_tokens=1000)

Started = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """The first engine computes prompts, the others answer."""

    def start(*, engines: int = 2, rule: HandoffRule = RULE) -> AbstractAsyncContextManager[Server]:
        roles = [Role.PREFILL, *[Role.DECODE] * (engines - 1)]
        return serving(tmp_path, engines=engines, roles=roles, handoffs=rule)

    return start


def forgone(taker: FakeEngine) -> list[Forgo]:
    return [message for message in taker.heard if isinstance(message, Forgo)]


async def test_a_long_prompt_goes_to_both_and_the_taker_alone_answers(started: Started) -> None:
    async with started() as server:
        giver, taker = server.engines
        answer = await ask(server.port, post(LONG))
        assert answer.status == 200
        (given,), (taken,) = giver.submitted, taker.submitted
        assert given.ticket is not None
        assert taken.ticket is not None
        assert (given.ticket.to, taken.ticket.to) == ("tcp:taker:1", "")
        assert (given.ticket.name, given.ticket.secret) == (taken.ticket.name, taken.ticket.secret)
        assert len(taken.ticket.secret) >= 16
        assert given.sampling == taken.sampling
        assert given.sampling.seed is not None
        assert (given.tokens, given.adapter, given.tenant) == (
            taken.tokens, taken.adapter, taken.tenant,
        )  # fmt: skip
        assert (given.max_tokens, given.n, given.granted) == (1, 1, None)
        assert not forgone(taker)
        (ended,) = server.recorder.ended
        assert (ended.prompt_tokens, ended.completion_tokens) == (len(taken.tokens), 5)
        assert answer.json["usage"]["prompt_tokens"] == len(taken.tokens)


async def test_what_is_short_or_known_to_the_taker_is_computed_there(started: Started) -> None:
    async with started() as server:
        giver, taker = server.engines
        await ask(server.port, post(SHORT))
        assert not giver.submitted
        assert taker.submitted[0].ticket is None
        await ask(server.port, post(LONG))
        again = [*LONG["messages"], {"role": "assistant", "content": "x"}]  # type: ignore[misc]
        await ask(server.port, post({**LONG, "messages": [*again, *SHORT["messages"]]}))  # type: ignore[misc]
        assert len(giver.submitted) == 1
        assert taker.submitted[-1].ticket is None
        await ask(server.port, post({**LONG, "model": "support"}))  # nothing of it is known
        assert len(giver.submitted) == 2


async def test_embeddings_and_echoes_see_every_token_themselves(started: Started) -> None:
    async with started() as server:
        giver, taker = server.engines
        echo = {"model": BASE, "prompt": "Hello " * 30, "echo": True, "logprobs": 1}
        assert (await ask(server.port, post(echo, path="/v1/completions"))).status == 200
        assert not giver.submitted
        assert taker.submitted


@pytest.mark.parametrize("why", [RefusalCode.QUEUE_FULL, RefusalCode.DRAINING])
async def test_a_giver_that_refuses_is_forgone(started: Started, why: RefusalCode) -> None:
    async with started() as server:
        giver, taker = server.engines
        giver.knobs.refuse = why
        taker.knobs.first_delay_s = 0.1
        assert (await ask(server.port, post(LONG))).status == 200
        (message,) = forgone(taker)
        assert message.request == taker.submitted[0].request
        assert len(server.recorder.ended) == 1


@pytest.mark.parametrize("knob", ["die_after", "fail_after"])
async def test_a_giver_that_dies_or_fails_is_forgone_and_nobody_notices(
    started: Started, knob: str
) -> None:
    async with started() as server:
        giver, taker = server.engines
        setattr(giver.knobs, knob, 0)
        taker.knobs.first_delay_s = 0.1
        answer = await ask(server.port, post(LONG))
        assert answer.status == 200
        assert len(forgone(taker)) == 1
        (ended,) = server.recorder.ended
        assert (ended.outcome, ended.completion_tokens) == ("completed", 5)


async def test_a_client_that_leaves_ends_both_halves(started: Started) -> None:
    async with started() as server:
        giver, taker = server.engines
        giver.knobs.hang_after = taker.knobs.hang_after = 0
        asking = asyncio.create_task(raw(server.port, post({**LONG, "stream": True})))
        await until(lambda: bool(giver.submitted and taker.submitted))
        asking.cancel()
        await until(lambda: not giver.open and not taker.open)
        for engine in (giver, taker):
            assert [m for m in engine.heard if isinstance(m, Cancel)]
        await until(lambda: bool(server.recorder.ended))


async def test_a_taker_that_dies_first_is_replaced_and_the_prompt_handed_anew(
    started: Started,
) -> None:
    async with started(engines=3) as server:
        giver, *takers = server.engines
        giver.knobs.hang_after = 0
        for taker in takers:
            taker.knobs.first_delay_s = 0.2
        asking = asyncio.create_task(ask(server.port, post(LONG)))
        await until(lambda: any(taker.submitted for taker in takers))
        next(taker for taker in takers if taker.submitted).die()
        assert (await asking).status == 200
        names = [submit.ticket.name for submit in giver.submitted if submit.ticket]
        assert len(names) == len(set(names)) == 2
        assert [ended.outcome for ended in server.recorder.ended] == ["completed"]


async def test_a_giver_with_enough_to_do_gets_no_more(started: Started) -> None:
    async with started(rule=HandoffRule(least_tokens=60, queue_tokens=150)) as server:
        giver, taker = server.engines
        giver.knobs.hang_after = taker.knobs.hang_after = 0
        first = asyncio.create_task(raw(server.port, post({**LONG, "stream": True})))
        await until(lambda: bool(taker.submitted))
        taker.knobs.hang_after = None
        text = {"role": "user", "content": "World " * 30}
        assert (await ask(server.port, post({**LONG, "messages": [text]}))).status == 200
        assert len(giver.submitted) == 1
        assert taker.submitted[-1].ticket is None
        first.cancel()
        await until(lambda: not giver.open)


async def test_engines_for_prompts_answer_where_nobody_else_is_left(started: Started) -> None:
    async with started(engines=1) as server:
        assert (await ask(server.port, post(LONG))).status == 200
        assert server.engines[0].submitted[0].ticket is None


def test_queues_count_what_waits_and_forget_what_is_done() -> None:
    queues = GiverQueues(100)
    assert queues.free("a", 1000)  # nothing waits there: as soon as here
    queues.add("a", 60)
    assert queues.free("a", 40)
    assert not queues.free("a", 41)
    assert queues.waiting("a") == 60
    queues.remove("a", 60)
    assert queues.waiting("a") == 0
    assert queues.free("a", 1000)
