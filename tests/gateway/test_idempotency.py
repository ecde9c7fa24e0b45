"""Idempotency-Key: the same request again gets the same answer, and is generated and paid once."""

import asyncio
import json
from dataclasses import replace
from uuid import uuid4

import openai
import pytest

from gateway.config import Secret
from gateway.errors import IdempotencyKeyBusy, IdempotencyUnavailable
from gateway.idempotency import answers as kept
from gateway.idempotency.answers import Kept, MemoryAnswers, claim_of
from gateway.idempotency.redis_answers import RedisAnswers
from gateway.redis import connect
from tests.fakes.clock import FakeClock, until
from tests.gateway.quotas import book, limiter_of
from tests.gateway.serving import BASE, KEY, OTHER_KEY, ask, post, raw, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
PROMPT = {"model": BASE, "prompt": "Hello there", "max_tokens": 5}


@pytest.fixture(params=["memory", "redis"])
async def answers(request):
    if request.param == "memory":
        yield MemoryAnswers()
        return
    client = connect(Secret(request.getfixturevalue("redis_url")), timeout_s=5)
    await client.flushall()
    yield RedisAnswers(client, deadline_s=5)
    await client.aclose()


def named(body, name: str, **more) -> bytes:
    return post(body, f"Idempotency-Key: {name}", **more)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_request_gets_the_same_bytes_and_is_generated_once(
    answers, tmp_path, path, stream
):
    body = (HELLO if path == CHAT else PROMPT) | {"stream": stream}
    async with serving(tmp_path, answers=answers) as server:
        first, again = [await ask(server.port, named(body, "k-1", path=path)) for _ in range(2)]
        assert (first.status, again.status) == (200, 200)
        assert again.body == first.body
        assert again.headers["content-type"] == first.headers["content-type"]
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert len(server.engine.submitted) == len(server.recorder.ended) == 1
        other = await ask(server.port, named(body, "k-2", path=path))
        assert (other.status, len(server.engine.submitted)) == (200, 2)


async def test_the_same_key_with_another_request_is_refused(answers, tmp_path):
    async with serving(tmp_path, answers=answers) as server:
        await ask(server.port, named(HELLO, "k"))
        for body, path in ((HELLO | {"max_tokens": 6}, CHAT), (PROMPT, "/v1/completions")):
            got = await ask(server.port, named(body, "k", path=path))
            assert got.status == 422
            assert got.error["code"] == "idempotency_key_reused"
            assert got.error["param"] == "Idempotency-Key"
        assert len(server.engine.submitted) == 1


async def test_a_key_for_some_models_gets_its_own_answers_alone(answers, tmp_path):
    async with serving(tmp_path, answers=answers) as server:
        narrow = replace(server.snapshot.keys[KEY], key="key_narrow", models=(BASE,))
        server.snapshot.keys["sk-narrow"] = narrow
        for key, replayed in ((KEY, None), ("sk-narrow", None), ("sk-narrow", "true")):
            got = await ask(server.port, named(HELLO, "k", key=key))
            assert (got.status, got.headers.get("idempotent-replayed")) == (200, replayed)
        assert len(server.engine.submitted) == 2


async def test_a_key_belongs_to_its_project(answers, tmp_path):
    async with serving(tmp_path, answers=answers) as server:
        mine, theirs = [
            await ask(server.port, named(HELLO, "k", key=key)) for key in (KEY, OTHER_KEY)
        ]
        assert "idempotent-replayed" not in theirs.headers
        assert mine.json["id"] != theirs.json["id"]


async def test_a_request_under_way_is_told_and_the_official_client_waits_for_it(answers, tmp_path):
    async with serving(tmp_path, answers=answers) as server:
        server.engine.knobs.token_delay_s = 0.05
        running = asyncio.create_task(ask(server.port, named(HELLO, "k")))
        await until(lambda: len(server.engine.submitted) == 1)
        got = await ask(server.port, named(HELLO, "k"))
        assert (got.status, got.error["code"]) == (409, "idempotency_key_in_use")
        assert got.headers["x-should-retry"] == "true"
        assert got.headers["retry-after-ms"] == "1000"
        first = await running
        async with server.client() as client:
            body = json.dumps(HELLO).encode()
            again = await client.with_options(max_retries=2).post(
                "/chat/completions", cast_to=object, content=body,
                options={"headers": {"Idempotency-Key": "k", "content-type": "application/json"}},
            )  # fmt: skip
        assert again == first.json
        assert len(server.engine.submitted) == 1


async def test_a_client_that_left_finds_the_whole_answer_when_it_comes_back(answers, tmp_path):
    body = HELLO | {"stream": True, "max_tokens": 30}
    async with serving(tmp_path, answers=answers) as server:
        server.engine.knobs.token_delay_s = 0.01
        await raw(server.port, named(body, "k"), read=300)  # and closes
        await until(lambda: len(server.recorder.ended) == 1, 20)
        got = await ask(server.port, named(body, "k"))
        assert got.headers["idempotent-replayed"] == "true"
        assert got.body.endswith(b"data: [DONE]\n\n")
        [ended] = server.recorder.ended
        assert (ended.outcome, ended.completion_tokens) == ("completed", 30)


async def test_what_failed_is_tried_again(answers, tmp_path):
    async with serving(tmp_path, answers=answers) as server:
        wrong = await ask(server.port, named(HELLO | {"model": "none"}, "k"))
        assert wrong.status == 404
        server.recorder.failing = True
        assert (await ask(server.port, named(HELLO, "k"))).status == 503
        server.recorder.failing = False
        got = await ask(server.port, named(HELLO, "k"))
        assert got.status == 200
        assert "idempotent-replayed" not in got.headers


async def test_an_answer_too_large_to_keep_is_not_given_twice(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MOST_ANSWER_BYTES", 10)
    async with serving(tmp_path, answers=answers) as server:
        assert (await ask(server.port, named(HELLO, "k"))).status == 200
        got = await ask(server.port, named(HELLO, "k"))
        assert (got.status, got.error["code"]) == (409, "idempotency_answer_not_kept")
        assert got.headers["x-should-retry"] == "false"
        assert len(server.engine.submitted) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "clé", "a\tb"])
async def test_a_key_that_is_none_is_refused_by_name(tmp_path, key):
    async with serving(tmp_path) as server:
        request = post(HELLO, "Idempotency-Key: KEY").replace(b"KEY", key.encode("latin-1"))
        got = await ask(server.port, request)
        assert (got.status, got.error["param"]) == (400, "Idempotency-Key")
        twice = await ask(server.port, post(HELLO, "Idempotency-Key: a", "Idempotency-Key: b"))
        assert twice.status == 400


async def test_answers_from_the_shelf_count_as_requests_and_as_nothing_else(tmp_path):
    from gateway.limits.memory import MemoryStore
    from gateway.limits.rules import Rates

    rates = Rates(requests_per_minute=2, tokens_per_minute=100)
    limiter = limiter_of(MemoryStore(), book({("project", "prj_acme"): rates}))
    async with serving(tmp_path, limiter=limiter) as server:
        first, again, third = [await ask(server.port, named(HELLO, "k")) for _ in range(3)]
        assert [first.status, again.status, third.status] == [200, 200, 429]
        assert again.headers["x-ratelimit-remaining-requests"] == "0"
        [lease_tokens] = [r.completion_tokens for r in server.recorder.ended]
        assert lease_tokens == 5


async def test_two_gateways_share_keys_and_a_dead_ones_claim_falls_free(redis_url):
    client = connect(Secret(redis_url), timeout_s=5)
    here, there = (RedisAnswers(client, deadline_s=5) for _ in range(2))
    mark = uuid4().hex
    first, second = (claim_of("org", mark, b"k", b"body") for _ in range(2))
    assert await here.claim(first) is None
    with pytest.raises(IdempotencyKeyBusy):
        await there.claim(second)
    await there.keep(second, Kept.of("text/plain", b"not yours to answer"))
    key = f"lt:{{org}}:{mark}:idempotency:{first.name}"
    assert 0 < await client.pttl(key) <= kept.CLAIM_S * 1000
    await client.delete(key)  # as if nobody had renewed it
    assert await there.claim(second) is None
    await there.keep(second, Kept.of("text/plain", b"done"))
    await here.keep(first, Kept.of("text/plain", b"too late"))
    got = await here.claim(claim_of("org", mark, b"k", b"body"))
    assert (got.kind, got.body) == ("text/plain", b"done")
    await client.aclose()


async def test_a_projects_answers_are_bounded_in_number(answers, monkeypatch):
    monkeypatch.setattr(kept, "MOST_ANSWERS", 3)
    monkeypatch.setattr("gateway.idempotency.redis_answers.MOST_ANSWERS", 3)
    claims = [claim_of("org", "prj", str(n).encode(), b"") for n in range(5)]
    for claim in claims:
        assert await answers.claim(claim) is None
        await answers.keep(claim, Kept.of("t", b"a"))
        await asyncio.sleep(0.002)
    fresh = [claim_of("org", "prj", str(n).encode(), b"") for n in (4, 3, 2)]
    assert [await answers.claim(claim) is None for claim in fresh] == [False] * 3
    assert await answers.claim(claim_of("org", "prj", b"0", b"")) is None  # the oldest went


async def test_answers_in_memory_are_bounded_in_bytes_and_time(monkeypatch):
    monkeypatch.setattr(kept, "MOST_BYTES", 8 * kept.ENTRY_BYTES)
    clock = FakeClock()
    shelf = MemoryAnswers(clock)
    claims = [claim_of("org", f"prj_{n % 2}", str(n).encode(), b"") for n in range(40)]
    for claim in claims:
        assert await shelf.claim(claim) is None
        await shelf.keep(claim, Kept.of("t", b"a"))
        assert 0 < shelf.kept < 8
    assert await shelf.claim(claims[-1]) is not None
    clock.advance(kept.KEEP_S)
    assert await shelf.claim(claims[-1]) is None


async def test_nothing_stays_in_memory_of_projects_that_ask_no_more():
    clock = FakeClock()
    shelf = MemoryAnswers(clock)
    for number in range(50):
        claim = claim_of("org", f"prj_{number}", b"k", b"")
        assert await shelf.claim(claim) is None
        if number % 2:
            await shelf.keep(claim, Kept.of("t", b"a"))
        else:
            await shelf.release(claim)
    shelf.sweep()
    assert shelf.kept == len(shelf._shelves) == 25
    clock.advance(kept.KEEP_S)
    shelf.sweep()
    assert shelf.kept == len(shelf._shelves) == shelf._size == 0


async def test_without_redis_a_request_with_a_key_is_refused_and_others_are_served(tmp_path):
    gone = connect(Secret("redis://127.0.0.1:1"), timeout_s=0.2)
    shelf = RedisAnswers(gone, deadline_s=0.3)
    with pytest.raises(IdempotencyUnavailable):
        await shelf.claim(claim_of("o", "p", b"k", b""))
    async with serving(tmp_path, answers=shelf) as server, server.client() as client:
        got = await ask(server.port, named(HELLO, "k"))
        assert (got.status, got.error["code"]) == (503, "idempotency_unavailable")
        plain = await client.chat.completions.create(**HELLO)
        assert plain.choices[0].finish_reason == "length"
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**HELLO, extra_headers={"Idempotency-Key": "k"})


async def test_a_claim_that_was_made_and_said_too_late_is_given_up(redis_url, monkeypatch):
    client = connect(Secret(redis_url), timeout_s=5)
    shelf, mark = RedisAnswers(client, deadline_s=5), uuid4().hex
    claim = shelf._claim

    async def late(*given):
        await claim(*given)
        raise TimeoutError

    monkeypatch.setattr(shelf, "_claim", late)
    with pytest.raises(IdempotencyUnavailable):
        await shelf.claim(claim_of("org", mark, b"k", b"body"))
    monkeypatch.setattr(shelf, "_claim", claim)
    with pytest.raises(IdempotencyKeyBusy):
        await RedisAnswers(client, deadline_s=5).claim(claim_of("org", mark, b"k", b"body"))
    assert await shelf.claim(claim_of("org", mark, b"k", b"body")) is None
    await client.aclose()


async def test_vectors_are_kept_under_their_key_too(tmp_path):
    body = {"model": BASE, "input": "Hello"}
    async with serving(tmp_path) as server:
        first, again = [
            await ask(server.port, named(body, "k", path="/v1/embeddings")) for _ in range(2)
        ]
        assert (first.status, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.body == first.body
        assert len(server.engine.submitted) == len(server.recorder.ended) == 1
