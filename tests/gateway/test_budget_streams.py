"""Streams against a budget: never a nano-dollar over it, next to nothing of it left."""

import asyncio
import random

import openai
import pytest

from gateway.config import Secret
from gateway.limits.memory import MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.rules import Rates, Use
from gateway.redis import connect
from tests.gateway.quotas import TARIFF, book, charged, limiter_of, monthly
from tests.gateway.serving import BASE, KEY, ask, post, serving

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(params=["memory", "redis"])
async def store(request):
    if request.param == "memory":
        yield MemoryStore()
        return
    client = connect(Secret(request.getfixturevalue("redis_url")), timeout_s=60)
    await client.flushall()
    yield RedisStore(client)
    await client.aclose()


async def test_256_streams_that_retry_use_a_budget_up_and_not_a_nano_more(store, tmp_path):
    budget = 60_000
    limiter = limiter_of(store, book(money={("project", "prj_acme"): monthly(budget)}))
    dice = random.Random(7)
    lengths = {}

    def script(submit):
        length = lengths.setdefault(
            submit.request, min(submit.max_tokens, dice.choice([5, 60, 400]))
        )
        return [5] * length

    async with serving(
        tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF, max_inflight=256
    ) as server:
        server.script(script)
        server.engine.knobs.tokens_per_step = 8
        over = asyncio.Event()
        wanted = post({"model": BASE, "messages": HELLO, "stream": True, "max_tokens": 400})

        async def one() -> None:
            """Over a bare connection: 256 clients of the official library in this process would
            leave no time for what is tested."""
            while not over.is_set():
                got = await ask(server.port, wanted, within_s=60)
                if got.status == 429 and got.headers["x-should-retry"] == "false":
                    over.set()
                elif got.status == 429:  # sooner than it was told to
                    await asyncio.sleep(dice.uniform(0.05, 0.15))
                else:
                    assert got.status == 200
                    assert got.body.endswith(b"data: [DONE]\n\n")

        async with asyncio.timeout(120):
            await asyncio.gather(*(one() for _ in range(256)))
        spent = charged(server.recorder.ended)
        [rule] = [
            r
            for r in limiter._rules().of(server.snapshot.keys[KEY], Use(BASE))
            if r.what.startswith("money")
        ]
        levels = await limiter.levels([rule])
        assert levels.levels == [spent]
        assert levels.held == [0]
        assert budget * 99 // 100 <= spent <= budget


@pytest.mark.parametrize("path", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_its_budget_cuts_short_says_so(tmp_path, path, stream):
    limiter = limiter_of(MemoryStore(), book(money={("project", "prj_acme"): monthly(300)}))
    async with serving(tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF) as server:
        async with server.client() as client:
            if path == "chat":
                ask = client.chat.completions.create(
                    model=BASE, messages=HELLO, stream=stream, max_tokens=400
                )
            else:
                ask = client.completions.create(
                    model=BASE, prompt="Hello there you", stream=stream, max_tokens=400
                )
            got = await ask
            choices = [c.choices[0] async for c in got] if stream else [got.choices[0]]
        last = choices[-1]
        assert last.finish_reason == "length"
        assert last.x_finish_detail["code"] == "project_spend_limit_exceeded"
        assert "budget of project prj_acme" in last.x_finish_detail["message"]
        [record] = server.recorder.ended
        assert record.outcome == "completed"
        assert 280 < charged(server.recorder.ended) <= 300


async def test_a_stream_may_finish_where_the_owner_chose_so(tmp_path):
    rules = book(money={("project", "prj_acme"): monthly(300, soft=True)})
    limiter = limiter_of(MemoryStore(), rules)
    priced = serving(tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF)
    async with priced as server, server.client() as client:
        got = await client.chat.completions.create(model=BASE, messages=HELLO, max_tokens=400)
        assert got.usage.completion_tokens == 400
        with pytest.raises(openai.RateLimitError) as refusal:
            await client.chat.completions.create(model=BASE, messages=HELLO)
    assert refusal.value.code == "project_spend_limit_exceeded"
    assert refusal.value.response.headers["x-should-retry"] == "false"


async def test_a_client_that_leaves_frees_its_slot_and_pays_for_what_was_made(tmp_path):
    rules = book({("key", "key_acme"): Rates(concurrency=1)},
                 {("project", "prj_acme"): monthly(100_000)})  # fmt: skip
    limiter = limiter_of(MemoryStore(), rules)
    async with serving(tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF) as server:
        key = server.snapshot.keys[KEY].key
        assert key == "key_acme"
        server.engine.knobs.token_delay_s = 0.005
        for _ in range(3):
            async with server.client() as client:
                stream = await client.chat.completions.create(
                    model=BASE, messages=HELLO, stream=True, max_tokens=400
                )
                async for _chunk in stream:
                    break
                await stream.close()
            async with asyncio.timeout(5):
                while limiter.open:
                    await asyncio.sleep(0.005)
        ended = server.recorder.ended
        assert [record.outcome for record in ended] == ["cancelled"] * 3
        assert all(0 < record.completion_tokens < 400 for record in ended)


async def test_several_choices_and_prompts_share_what_is_left(tmp_path):
    limiter = limiter_of(MemoryStore(), book(money={("project", "prj_acme"): monthly(900)}))
    async with serving(tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF) as server:
        async with server.client() as client:
            got = await client.completions.create(
                model=BASE, prompt=["Hello", "there", "you"], n=2, max_tokens=300
            )
        assert [choice.finish_reason for choice in got.choices] == ["length"] * 6
        assert 0 < charged(server.recorder.ended) <= 900
