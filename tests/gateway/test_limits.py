"""One suite for both places where buckets can be: this process, and a real Redis."""

import asyncio
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from gateway.config import Secret
from gateway.errors import NeverWithinTokenLimit, RequestsLimited, TokensLimited
from gateway.identity.principal import Principal
from gateway.limits.lease import Headroom, duration
from gateway.limits.limiter import RateLimiter, memory_limiter
from gateway.limits.redis_store import RedisStore
from gateway.redis import connect


def principal(requests: int | None = None, tokens: int | None = None, key: str = "") -> Principal:
    return Principal(
        organisation="org_1",
        project="prj_1",
        project_name="acme",
        key=key or f"key_{uuid4().hex}",
        tenant="t",
        requests_per_minute=requests,
        tokens_per_minute=tokens,
    )


@pytest.fixture(params=["memory", "redis"])
async def limiter(request):
    if request.param == "memory":
        yield memory_limiter()
        return
    url = Secret(request.getfixturevalue("redis_url"))
    limiter = RateLimiter(RedisStore(connect(url, timeout_s=2)))
    yield limiter
    await limiter.close()


async def granted(limiter, who, count, tokens=1) -> int:
    async def one(number: int) -> bool:
        try:
            await limiter.reserve(who, f"req_{who.key}_{number}_{uuid4().hex}", tokens)
        except (RequestsLimited, TokensLimited):
            return False
        return True

    return sum(await asyncio.gather(*(one(number) for number in range(count))))


@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_a_limit_of_n_lets_at_most_n_plus_one_pass_at_once(limiter, limit):
    assert limit <= await granted(limiter, principal(requests=limit), 3 * limit + 5) <= limit + 1


async def test_tokens_are_counted_by_their_number(limiter):
    who = principal(tokens=100)
    assert await granted(limiter, who, 20, tokens=30) == 3


async def test_a_key_without_limits_is_never_refused_and_has_no_headers(limiter):
    lease = await limiter.reserve(principal(), "req_1", 10**9)
    assert lease.headroom.headers() == {}
    await limiter.settle(lease, 5)


async def test_keys_do_not_share_buckets(limiter):
    first, second = principal(requests=1), principal(requests=1)
    assert await granted(limiter, first, 3) == 1
    assert await granted(limiter, second, 3) == 1


async def test_a_refusal_by_tokens_takes_no_request_and_the_other_way_round(limiter):
    who = principal(requests=5, tokens=100)
    await limiter.reserve(who, "req_a", 90)
    for number in range(4):
        with pytest.raises(TokensLimited):
            await limiter.reserve(who, f"req_b{number}", 50)
    assert (await limiter.headroom(who)).remaining_requests == 4

    busy = principal(requests=1, tokens=100)
    await limiter.reserve(busy, "req_c", 1)
    with pytest.raises(RequestsLimited):
        await limiter.reserve(busy, "req_d", 90)
    assert (await limiter.headroom(busy)).remaining_tokens >= 99


async def test_a_refusal_names_its_limit_and_the_exact_wait(limiter):
    who = principal(tokens=1200)  # one each 50 ms
    await limiter.reserve(who, "req_1", 1200)
    with pytest.raises(TokensLimited) as refusal:
        await limiter.reserve(who, "req_2", 8)
    wait = refusal.value.retry_after
    assert 0.3 < wait <= 0.4
    assert "tokens per minute: limit 1200" in refusal.value.message
    assert refusal.value.headers()["x-ratelimit-limit-tokens"] == "1200"
    await asyncio.sleep(wait)
    await limiter.reserve(who, "req_2", 8)


async def test_a_request_larger_than_the_whole_limit_is_told_never_to_retry(limiter):
    who = principal(requests=9, tokens=100)
    with pytest.raises(NeverWithinTokenLimit) as refusal:
        await limiter.reserve(who, "req_1", 101)
    assert refusal.value.headers()["x-should-retry"] == "false"
    assert (await limiter.headroom(who)).remaining_requests == 9


async def test_settling_gives_back_what_was_not_used_once(limiter):
    who = principal(tokens=1000)
    lease = await limiter.reserve(who, "req_1", 900)
    for _ in range(3):
        await limiter.settle(lease, 100)
    left = (await limiter.headroom(who)).remaining_tokens
    assert 900 <= left < 920


async def test_settling_more_than_was_reserved_is_charged(limiter):
    who = principal(tokens=1000)
    lease = await limiter.reserve(who, "req_1", 100)
    await limiter.settle(lease, 700)
    left = (await limiter.headroom(who)).remaining_tokens
    assert 300 <= left < 320


async def test_settling_an_unknown_lease_changes_nothing(limiter):
    who = principal(tokens=1000)
    lease = await limiter.reserve(who, "req_1", 500)
    await limiter.settle(lease, 500)
    await limiter.settle(lease, 0)
    assert (await limiter.headroom(who)).remaining_tokens < 520


async def test_what_time_has_drained_is_not_given_back_again(limiter):
    who = principal(tokens=60_000)  # one each millisecond
    first = await limiter.reserve(who, "req_1", 200)
    await asyncio.sleep(0.25)  # the whole reservation has drained
    await limiter.reserve(who, "req_2", 30_000)
    await limiter.settle(first, 0)
    assert (await limiter.headroom(who)).remaining_tokens < 30_200


async def test_a_lowered_limit_waits_a_minute_at_most(limiter):
    await limiter.reserve(principal(tokens=1_000_000, key="key_same"), "req_1", 1_000_000)
    with pytest.raises(TokensLimited) as refusal:
        await limiter.reserve(principal(tokens=10, key="key_same"), "req_2", 10)
    assert refusal.value.retry_after <= 60


async def test_very_large_limits_stay_exact(limiter):
    who = principal(tokens=1_000_000_000)
    await limiter.reserve(who, "req_1", 999_999_999)
    left = (await limiter.headroom(who)).remaining_tokens
    assert 1 <= left < 200_000_000


async def test_headers_say_limit_remaining_and_reset(limiter):
    lease = await limiter.reserve(principal(requests=2, tokens=100), "req_1", 50)
    headers = lease.headroom.headers()
    assert headers == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "30s",
    }


async def test_a_limit_of_nothing_says_so(limiter):
    who = principal(requests=0, tokens=100)
    with pytest.raises(NeverWithinTokenLimit, match=r"No request is allowed .* is 0") as refusal:
        await limiter.reserve(who, "req_1", 50)
    assert (refusal.value.retryable, refusal.value.retry_after) == (False, None)
    told = refusal.value.headers()
    assert told["x-ratelimit-limit-requests"] == told["x-ratelimit-remaining-requests"] == "0"
    assert (told["x-ratelimit-reset-requests"], told["x-ratelimit-remaining-tokens"]) == (
        "0s", "100",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.012, "12ms"), (0.0001, "1ms"), (1.5, "1.5s"), (360, "6m0s"), (59.9999, "1m0s")],
)
def test_durations_read_as_openai_writes_them(seconds, text):
    assert duration(seconds) == text


def test_a_limit_that_is_not_set_has_no_header():
    assert list(Headroom(limit_tokens=5, remaining_tokens=5).headers()) == [
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ]


async def test_a_script_that_the_server_forgot_is_sent_again(redis_url):
    redis = connect(Secret(redis_url), timeout_s=2)
    limiter = RateLimiter(RedisStore(redis))
    who = principal(requests=10)
    await limiter.reserve(who, "req_1", 1)
    await redis.script_flush()
    await limiter.reserve(who, "req_2", 1)
    assert (await limiter.headroom(who)).remaining_requests == 8
    await limiter.close()


async def test_everything_one_script_touches_is_in_one_slot_and_expires(redis_url):
    redis: Redis = connect(Secret(redis_url), timeout_s=2)
    await redis.flushall()
    limiter = RateLimiter(RedisStore(redis))
    await limiter.reserve(principal(requests=10, tokens=10), "req_1", 1)
    names = await redis.keys("*org_1*")
    assert len(names) == 3
    assert len({await redis.execute_command("CLUSTER", "KEYSLOT", name) for name in names}) == 1
    assert all([await redis.pttl(name) > 0 for name in names])
    await limiter.close()
