"""With these inputs users of other gateways overspent, were locked out, or lost slots."""

import asyncio

import pytest

from engine.protocol import RefusalCode
from gateway.config import Secret
from gateway.limits.limiter import RateLimiter, redis_limiter
from gateway.limits.memory import MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.rules import Rates
from gateway.redis import connect
from tests.fakes.clock import until
from tests.gateway.quotas import TARIFF, book, charged, limiter_of, monthly
from tests.gateway.serving import BASE, ask, post, serving

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
BODIES = {
    CHAT: HELLO,
    COMPLETIONS: {"model": BASE, "prompt": "Hello", "max_tokens": 10},
    "/v1/embeddings": {"model": BASE, "input": "Hello"},
    "/v1/responses": {"model": BASE, "input": "Hello", "max_output_tokens": 10},
}
FREE = {"/tokenize", "/detokenize"}  # no engine is asked; they count as requests
PROJECT = ("project", "prj_acme")


def priced(tmp_path, rules, **more):
    limiter = limiter_of(MemoryStore(), rules)
    return limiter, serving(tmp_path, limiter=limiter, tariff=lambda target, at: TARIFF, **more)


async def test_every_route_that_reaches_an_engine_asks_the_budget_first(tmp_path):
    """A route that skipped the budget was free for everybody."""
    _, running = priced(tmp_path, book(money={PROJECT: monthly(0)}))
    async with running as server:
        posts = {path for path, route in server.routes._routes.items() if "POST" in route.methods}
        assert posts - FREE <= BODIES.keys()
        for path in sorted(posts - FREE):
            got = await ask(server.port, post(BODIES[path], path=path))
            assert (path, got.status) == (path, 429)
            assert got.error["code"] == "project_spend_limit_exceeded"
            assert got.headers["x-should-retry"] == "false"
        assert server.engine.submitted == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_tokens_a_minute_hold_for_requests_that_come_at_once(tmp_path, path):
    """100 a minute and five at once: 663 tokens were served."""
    limiter = limiter_of(MemoryStore(), book({PROJECT: Rates(tokens_per_minute=100)}))
    async with serving(tmp_path, limiter=limiter) as server:
        body = BODIES[path] | {"max_tokens": 60}
        got = await asyncio.gather(*(ask(server.port, post(body, path=path)) for _ in range(5)))
        assert sorted(each.status for each in got) == [200, 429, 429, 429, 429]
        assert sum(r.prompt_tokens + r.completion_tokens for r in server.recorder.ended) <= 100


async def test_limits_of_requests_and_of_tokens_do_not_share_a_window(tmp_path):
    rates = Rates(requests_per_minute=3, tokens_per_minute=10_000)
    limiter = limiter_of(MemoryStore(), book({PROJECT: rates}))
    async with serving(tmp_path, limiter=limiter) as server:
        got = [await ask(server.port, post(HELLO)) for _ in range(4)]
        assert [each.status for each in got] == [200, 200, 200, 429]
        assert got[-1].error["type"] == "requests"
        assert int(got[2].headers["x-ratelimit-remaining-tokens"]) > 9_000


async def test_a_flood_of_wrong_requests_counts_as_requests(tmp_path):
    limiter = limiter_of(MemoryStore(), book({PROJECT: Rates(requests_per_minute=4)}))
    async with serving(tmp_path, limiter=limiter) as server:
        wrong = [b"{", HELLO | {"temperature": 9}, HELLO | {"model": "none"}, {"model": BASE}]
        assert [(await ask(server.port, post(body))).status for body in wrong] == [
            400,
            400,
            404,
            400,
        ]
        assert (await ask(server.port, post(HELLO))).status == 429


async def test_a_flood_that_could_never_pass_counts_as_requests(tmp_path):
    rates = Rates(requests_per_minute=2, tokens_per_minute=60)
    limiter = limiter_of(MemoryStore(), book({PROJECT: rates}))
    async with serving(tmp_path, limiter=limiter) as server:
        got = [await ask(server.port, post(HELLO | {"max_tokens": 99})) for _ in range(3)]
        assert [each.error["type"] for each in got] == ["tokens", "tokens", "requests"]
        assert got[0].headers["x-should-retry"] == "false"


async def test_a_flood_for_what_has_no_price_counts_as_requests(tmp_path):
    rules = book({PROJECT: Rates(requests_per_minute=1)}, money={PROJECT: monthly(9)})
    async with serving(tmp_path, limiter=limiter_of(MemoryStore(), rules)) as server:
        got = [await ask(server.port, post(HELLO)) for _ in range(2)]
        assert [each.status for each in got] == [403, 429]
        assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["0", "0"]


async def test_one_that_a_slot_refuses_takes_nothing_of_the_rate(tmp_path):
    """rpm 2, one at a time: A runs, B is refused by the slot, then C must pass."""
    rates = Rates(requests_per_minute=2, concurrency=1)
    limiter = limiter_of(MemoryStore(), book({PROJECT: rates}))
    async with serving(tmp_path, limiter=limiter) as server:
        server.engine.knobs.token_delay_s = 0.02
        running = asyncio.create_task(ask(server.port, post(HELLO)))
        await until(lambda: len(server.engine.submitted) == 1)
        refused = await ask(server.port, post(HELLO))
        assert (refused.status, "concurrent requests" in refused.error["message"]) == (429, True)
        assert (await running).status == 200
        assert (await ask(server.port, post(HELLO))).status == 200


@pytest.mark.parametrize("fault", ["error", "death", "refusal", "leaves at once"])
async def test_whatever_ends_a_request_frees_its_slot_and_its_money(tmp_path, fault):
    """Slots that were freed only at a good end locked keys until Redis was restarted."""
    rules = book({PROJECT: Rates(concurrency=1)}, {PROJECT: monthly(1_000)})
    limiter, running = priced(tmp_path, rules)
    async with running as server:
        knobs = server.engine.knobs
        match fault:
            case "error":
                knobs.fail_after = 3
            case "death":
                knobs.die_after = 3
            case "refusal":
                knobs.refuse = RefusalCode.ADAPTER_INVALID
            case _:
                knobs.first_delay_s = 5.0
        if fault == "leaves at once":
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(post(HELLO))
            await until(lambda: limiter.open == 1, 20)
            writer.close()
        else:
            got = await ask(server.port, post(HELLO))
            assert got.status >= 500
        await until(lambda: limiter.open == 0, 20)
        knobs.fail_after = knobs.die_after = knobs.refuse = None
        knobs.first_delay_s = 0.0
        await until(lambda: server.health.ready, 20)
        assert (await ask(server.port, post(HELLO))).status == 200
        [purse] = await limiter.purses()
        assert (purse.spent, purse.held, purse.open) == (charged(server.recorder.ended), 0, ())


async def test_only_what_the_engine_made_is_billed_and_never_the_text_of_an_error(tmp_path):
    rules = book(money={PROJECT: monthly(10_000)})
    _, running = priced(tmp_path, rules)
    async with running as server:
        server.engine.knobs.fail_after = 4
        got = await ask(server.port, post(HELLO | {"stream": True, "max_tokens": 50}))
        assert b'"error"' in got.body
        assert got.body.endswith(b"data: [DONE]\n\n")
        [record] = server.recorder.ended
        assert (record.outcome, record.completion_tokens) == ("failed", 4)
        server.engine.knobs.fail_after = 0
        assert (await ask(server.port, post(HELLO))).status == 500
        assert server.recorder.ended[-1].completion_tokens == 0


async def test_cached_prompt_tokens_do_not_count_in_tokens_a_minute(tmp_path):
    limiter = limiter_of(MemoryStore(), book({PROJECT: Rates(tokens_per_minute=1_000)}))
    async with serving(tmp_path, limiter=limiter) as server:
        got = await ask(server.port, post(HELLO))
        used = got.json["usage"]
        again = await ask(server.port, post(HELLO))
        left = [int(g.headers["x-ratelimit-remaining-tokens"]) for g in (got, again)]
        fresh = used["total_tokens"] - used["prompt_tokens_details"]["cached_tokens"]
        assert left[0] - left[1] <= fresh


async def test_two_gateways_share_one_limit(redis_url, tmp_path):
    """A limit that was multiplied by the replicas."""
    client = connect(Secret(redis_url), timeout_s=5)
    await client.flushall()
    rules = book({PROJECT: Rates(requests_per_minute=5)})
    limiters = [RateLimiter(RedisStore(client), rules=lambda: rules) for _ in range(2)]
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    async with (
        serving(tmp_path / "1", limiter=limiters[0]) as one,
        serving(tmp_path / "2", limiter=limiters[1]) as two,
    ):
        got = await asyncio.gather(
            *(ask(s.port, post(HELLO)) for s in (one, two) for _ in range(6))
        )
        assert sorted(each.status for each in got) == [200] * 5 + [429] * 7
    await client.aclose()


async def test_customers_have_limits_of_their_own_and_of_anybody(tmp_path):
    rules = book({
        ("customer", "prj_acme/bob"): Rates(requests_per_minute=2),
        ("customer", "prj_acme/*"): Rates(requests_per_minute=1),
        ("tag", "prj_acme/team=a"): Rates(requests_per_minute=1),
        ("customer", "prj_globex/bob"): Rates(requests_per_minute=1),
    })  # fmt: skip
    limiter = limiter_of(MemoryStore(), rules)
    async with serving(tmp_path, limiter=limiter) as server:

        async def statuses(count: int, path: str = CHAT, **more) -> list[int]:
            body = BODIES[path] | more
            return [(await ask(server.port, post(body, path=path))).status for _ in range(count)]

        assert await statuses(2, user="bob") == [200, 200]
        assert await statuses(1, safety_identifier="bob") == [429]
        assert await statuses(1, COMPLETIONS, user="bob") == [429]
        assert await statuses(2, user="eve") == [200, 429]
        assert await statuses(2, user="mallory") == [200, 429]  # each by itself
        assert await statuses(2, metadata={"team": "a"}) == [200, 429]
        assert await statuses(2, metadata={"team": "b"}) == [200, 200]
        got = await ask(server.port, post(HELLO | {"user": "bob"}))
        assert "customer prj_acme/bob" in got.error["message"]
        users = [record.user for record in server.recorder.records if hasattr(record, "user")]
        assert users[:2] == ["bob", "bob"]


async def test_a_customers_budget_cuts_that_customers_stream_alone(tmp_path):
    rules = book(money={("customer", "prj_acme/bob"): monthly(100)})
    _, running = priced(tmp_path, rules)
    async with running as server:
        body = HELLO | {"max_tokens": 400}
        got = await ask(server.port, post(body | {"user": "bob"}))
        choice = got.json["choices"][0]
        assert choice["finish_reason"] == "length"
        assert "customer prj_acme/bob" in choice["x_finish_detail"]["message"]
        assert 80 < charged(server.recorder.ended) <= 100
        other = await ask(server.port, post(body | {"user": "eve"}))
        assert other.json["usage"]["completion_tokens"] == 400


async def test_a_redis_that_is_away_or_runs_no_scripts_is_told_before_any_request(redis_url):
    """Blocked scripts meant limits for each replica alone, and nobody was told."""
    away = redis_limiter(connect(Secret("redis://127.0.0.1:1"), timeout_s=0.2), deadline_s=0.3)
    assert not away.degraded
    await away.watch()
    assert away.degraded
    await away.close()
    admin = connect(Secret(redis_url), timeout_s=5)
    await admin.execute_command(
        "ACL", "SETUSER", "tame", "on", "nopass", "~*", "+@all", "-@scripting"
    )
    tame = Secret(redis_url.replace("redis://", "redis://tame:x@"))
    blocked = redis_limiter(connect(tame, timeout_s=5), deadline_s=5)
    await blocked.watch()
    assert blocked.degraded
    await blocked.close()
    await admin.execute_command("ACL", "DELUSER", "tame")
    await admin.aclose()
