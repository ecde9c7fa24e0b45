"""Any schedule of reservations keeps a limit's promise; a lost store keeps a share of it."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Secret
from gateway.errors import QuotaBackendUnavailable, TokensLimited
from gateway.limits.degrading import FAILURES_TO_OPEN, RETRY_S, SURELY_S, DegradingStore
from gateway.limits.limiter import RateLimiter, lease_name, redis_limiter
from gateway.limits.memory import SWEEP_EVERY, MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.store import Ask, Kind, Unit
from gateway.redis import connect
from tests.gateway.quotas import book, demand, limiter_of, monthly, somebody
from tests.gateway.test_limits import granted, principal


class Clock:
    """Milliseconds that move when told."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class LostStore:
    """A shared store that hangs or fails, until it is mended."""

    def __init__(self) -> None:
        self.mode, self.asked = "works", 0
        self.inner = MemoryStore()

    async def take(self, asks, lease):
        if self.mode == "answers late":
            await self.inner.take(asks, lease)
            await asyncio.sleep(60)
        await self.trouble()
        return await self.inner.take(asks, lease)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def settle(self, lease, **used):
        await self.trouble()
        return await self.inner.settle(lease, **used)

    async def close(self):
        return None

    async def trouble(self):
        self.asked += 1
        if self.mode == "hangs":
            await asyncio.sleep(60)
        if self.mode == "fails":
            raise ConnectionError("refused")


actions = st.lists(
    st.tuples(
        st.integers(0, 5_000),  # milliseconds that pass
        st.integers(1, 100),  # tokens reserved
        st.integers(0, 100),  # per cent of them used
        st.integers(0, 70_000),  # milliseconds until it is settled
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.sampled_from([100, 101, 700, 997]))
def test_tokens_used_never_exceed_the_bucket_and_its_refill(schedule, limit):
    """Over any stretch of time: at most one full bucket and what flows in meanwhile."""
    clock = Clock()
    limiter = RateLimiter(MemoryStore(clock))
    who = principal(tokens=limit)
    used: list[tuple[int, int]] = []  # (time of admission, tokens)

    async def play() -> None:
        waiting = []
        for number, (passes, tokens, share, later) in enumerate(schedule):
            clock.now += passes
            for entry in [e for e in waiting if e[0] <= clock.now]:
                waiting.remove(entry)
                await limiter.settle(entry[1], entry[2])
            try:
                lease = await limiter.reserve(who, f"req_{number}", tokens)
            except TokensLimited as refusal:
                clock.now += round(refusal.retry_after * 1000) - 1
                with pytest.raises(TokensLimited):  # the wait is exact: not a millisecond less
                    await limiter.reserve(who, f"req_{number}", tokens)
                clock.now += 1
                lease = await limiter.reserve(who, f"req_{number}", tokens)
            spent = tokens * share // 100
            used.append((clock.now, spent))
            waiting.append((clock.now + later, lease, spent))

    asyncio.run(play())
    for start in range(len(used)):
        total = 0
        for at, tokens in used[start:]:
            total += tokens
            assert total <= limit + limit * (at - used[start][0]) / 60_000 + 1


def test_drained_buckets_and_forgotten_leases_are_removed():
    clock = Clock()
    buckets = MemoryStore(clock)
    limiter = RateLimiter(buckets)

    async def play() -> None:
        for number in range(SWEEP_EVERY - 1):
            await limiter.reserve(principal(requests=5, tokens=5), f"req_{number}", 1)
        clock.now += 2 * 3_600_000
        await limiter.reserve(principal(requests=5, tokens=5), "req_last", 1)

    asyncio.run(play())
    assert len(buckets._buckets) == 2
    assert len(buckets._leases) == 1


@pytest.mark.parametrize("mode", ["hangs", "fails"])
async def test_a_lost_store_degrades_to_a_local_share_and_says_so_once(mode, caplog):
    store = LostStore()
    store.mode = mode
    buckets = DegradingStore(store, deadline_s=0.02, replicas=lambda: 2)
    limiter = RateLimiter(buckets)
    who = principal(requests=10, tokens=1000)
    with caplog.at_level(logging.WARNING):
        assert await granted(limiter, who, 20) == 5
    assert buckets.degraded
    assert buckets.local_grants == 5
    assert len(caplog.records) == 1


async def test_an_open_breaker_does_not_wait_for_the_store_and_closes_when_it_is_back():
    now = 0.0
    store = LostStore()
    store.mode = "fails"
    buckets = DegradingStore(store, deadline_s=0.02, clock=lambda: now)
    limiter = RateLimiter(buckets)
    who = principal(tokens=1000)
    leases = [await limiter.reserve(who, f"req_{n}", 10) for n in range(10)]
    assert store.asked == FAILURES_TO_OPEN

    store.mode = "works"
    now = 2.0
    await limiter.reserve(who, "req_back", 10)
    assert not buckets.degraded
    for lease in leases:  # taken here, so given back here
        await limiter.settle(lease, 0)
    assert store.asked == FAILURES_TO_OPEN + 1


async def test_what_a_store_took_and_said_too_late_is_given_back_for_every_request():
    now = 0.0
    store = LostStore()
    buckets = DegradingStore(store, deadline_s=0.05, clock=lambda: now)
    who = somebody()
    rules = book(money={("project", who.project): monthly(10_000)})
    limiter = limiter_of(buckets, rules)
    await limiter.settle(await limiter.reserve(who, "req_first", 30, demand=demand()), 30, 50)
    store.mode = "answers late"
    many = (limiter.reserve(who, f"req_{n}", 30, demand=demand()) for n in range(20))
    told = await asyncio.gather(*many, return_exceptions=True)
    assert {type(each) for each in told} == {QuotaBackendUnavailable}
    [purse] = await store.inner.purses()
    assert (len(purse.open), purse.held) == (20, 20 * 50)
    store.mode = "works"
    now = RETRY_S
    await buckets.watch()
    [purse] = await store.inner.purses()
    assert (purse.open, purse.held, purse.spent) == ((), 0, 50)
    asks = [Ask(purse.key, Kind.MONEY, Unit.MONEY, limit=10_000, cost=5, least=5)]
    await store.inner.take(asks, lease_name(who.organisation, "req_7"))  # read after all
    now = RETRY_S + SURELY_S
    await buckets.watch()
    [purse] = await store.inner.purses()
    assert (purse.open, purse.held) == ((), 0)


async def test_gateways_learn_how_many_share_the_limits(redis_url):
    clients = [connect(Secret(redis_url), timeout_s=2) for _ in range(3)]
    await clients[0].flushall()
    gateways = [RedisStore(client) for client in clients]
    for _ in range(2):
        for gateway in gateways:
            await RateLimiter(gateway).watch()
    assert [gateway.gateways for gateway in gateways] == [3, 3, 3]
    for gateway in gateways:
        await gateway.close()


async def test_a_redis_that_is_not_there_does_not_stop_requests():
    limiter = redis_limiter(connect(Secret("redis://127.0.0.1:1"), timeout_s=0.2), deadline_s=0.25)
    assert await granted(limiter, principal(requests=4), 8) == 4
    await limiter.close()
