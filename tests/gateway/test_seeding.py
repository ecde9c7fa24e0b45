"""Counters of money are derived from the ledger: whatever is lost, no nano-dollar counts twice."""

import asyncio
from dataclasses import replace

import pytest

from gateway.config import Secret
from gateway.errors import BudgetExhausted, QuotaBackendUnavailable, TokensLimited
from gateway.identity.principal import Principal
from gateway.limits.degrading import DegradingStore
from gateway.limits.limiter import RateLimiter
from gateway.limits.memory import MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.rules import Rates, Use
from gateway.limits.store import READ_AGAIN, Open, Verdict
from gateway.redis import connect
from tests.gateway.quotas import Now, book, demand, limiter_of, monthly, somebody


@pytest.fixture
def who() -> Principal:
    return somebody()


@pytest.fixture(params=["memory", "redis"])
async def store(request):
    if request.param == "memory":
        yield MemoryStore()
        return
    store = RedisStore(connect(Secret(request.getfixturevalue("redis_url")), timeout_s=5))
    yield store
    await store.close()


class Ledger:
    """Costs by request."""

    def __init__(self, **costs: int) -> None:
        self.costs_of, self.read = dict(costs), 0

    async def __call__(self, rule, now, without=()):
        self.read += 1
        return sum(nano for name, nano in self.costs_of.items() if name not in without)

    async def costs(self, requests):
        return {name: self.costs_of[name] for name in requests if name in self.costs_of}


async def state(limiter, rule) -> tuple[int, int]:
    levels = await limiter.levels([rule])
    return levels.levels[0], levels.held[0]


async def test_a_correction_of_what_was_charged_is_read_and_unlocks_at_once(store, who):
    """A price a thousand times too high had locked the tenant out; another corrected it."""
    rules, ledger = book(money={("project", who.project): monthly(200)}), Ledger(req_old=150)
    current = [rules]
    limiter = RateLimiter(store, rules=lambda: current[0], spending=ledger)
    first = await limiter.reserve(who, "req_1", 1, demand=demand(block=5))  # 20 of 50
    await limiter.settle(first, 1, 20)
    running = await limiter.reserve(who, "req_2", 1, demand=demand(block=5))
    ledger.costs_of = {"req_old": 1, "req_1": 20}
    current[0] = replace(rules, version=1)
    again = await limiter.reserve(who, "req_3", 1, demand=demand(block=20))
    rule = again.purses[0][0]
    assert await state(limiter, rule) == (21, running.money + again.money)
    await limiter.settle(running, 1, 7)
    assert await state(limiter, rule) == (28, again.money)
    assert ledger.read == 2


async def test_what_settles_while_a_counter_is_read_anew_counts_once(store, who):
    rules = book(money={("project", who.project): monthly(1000)})
    ledger, begun, go = Ledger(), asyncio.Event(), asyncio.Event()

    async def slow(rule, now, without=()):
        begun.set()
        await go.wait()
        return await ledger(rule, now, without)

    current = [rules]
    limiter = RateLimiter(store, rules=lambda: current[0], spending=slow)
    go.set()
    lease = await limiter.reserve(who, "req_1", 1, demand=demand())
    go.clear(), begun.clear()
    current[0] = replace(rules, version=1)
    asking = asyncio.create_task(limiter.reserve(who, "req_2", 1, demand=demand()))
    async with asyncio.timeout(10):
        await begun.wait()
    ledger.costs_of["req_1"] = 33  # its log was faster than its settlement
    await limiter.settle(lease, 1, 33)
    go.set()
    other = await asking
    assert await state(limiter, other.purses[0][0]) == (33, other.money)


async def test_a_sum_that_was_read_before_others_came_is_refused(store, who):
    rule = next(iter(book(money={("key", who.key): monthly(9)}).of(who, Use())))
    ask = rule.ask(0, Now()())
    await store.enter(ask, [Open("lt:{o}:lease:req_1", 5)])
    assert await store.seed(ask, 3, known=[]) == READ_AGAIN
    known = await store.known(ask.key)
    assert known == ["lt:{o}:lease:req_1"]
    assert await store.seed(ask, 3, known=known) == 0
    assert await store.seed(ask, 4, known=[]) == 0  # it counts already: ignored
    [purse] = [purse for purse in await store.purses() if purse.key == ask.key]
    assert (purse.spent, purse.held, purse.open) == (3, 5, (Open(known[0], 5),))


async def test_two_gateways_tell_a_redis_that_began_anew_before_anybody_is_admitted(redis_url, who):
    budget, ledger = 200, Ledger()
    rules = book(money={("project", who.project): monthly(budget)})
    redis = connect(Secret(redis_url), timeout_s=5)
    one, two = (
        RateLimiter(RedisStore(redis, recovery_ms=300), rules=lambda: rules, spending=ledger)
        for _ in range(2)
    )
    mine = await one.reserve(who, "req_1", 1, demand=demand())
    yours = await two.reserve(who, "req_2", 1, demand=demand())
    assert (await two.extend(yours, held=50, want=60, least=1)).nano == 60
    await one.watch(), await two.watch()
    await redis.flushall()
    asking = asyncio.create_task(one.reserve(who, "req_3", 1, demand=demand()))
    await asyncio.sleep(0.1)
    assert not asking.done()
    await two.watch()
    third = await asking
    rule = mine.purses[0][0]
    assert third.money == budget - 50 - 110
    assert await state(one, rule) == (0, budget)
    for limiter, lease, nano in ((one, mine, 50), (two, yours, 100), (one, third, 40)):
        await limiter.settle(lease, 1, nano)
    assert await state(two, rule) == (190, 0)
    await one.close()


async def dead(redis_url, who, budget=200):
    """A gateway that died with a request open; another one that lives."""
    rules = book(money={("project", who.project): monthly(budget)})
    store, ledger = RedisStore(connect(Secret(redis_url), timeout_s=5)), Ledger()
    gone = RateLimiter(store, rules=lambda: rules)
    lease = await gone.reserve(who, "req_1", 1, demand=demand())
    alive = RateLimiter(store, rules=lambda: rules, spending=ledger, costs=ledger.costs)
    await alive.reserve(who, "req_2", 1, demand=demand())
    return alive, ledger, lease


async def test_an_orphan_is_charged_once_however_often_it_is_closed(redis_url, who):
    alive, _, lease = await dead(redis_url, who)
    rule = lease.purses[0][0]
    assert await state(alive, rule) == (0, 100)
    for _ in range(3):
        await alive.settle_orphan(who, "req_1", Use(), lease.at, used=9, nano=31)
    assert await state(alive, rule) == (31, 50)
    await alive.close()


async def test_an_orphan_that_the_counter_never_met_is_left_to_the_ledger(store, who):
    ledger = Ledger(req_0=60)
    rules = book(money={("project", who.project): monthly(100)})
    limiter = limiter_of(store, rules, spending=ledger)
    lease = await limiter.reserve(who, "req_1", 1, demand=demand(block=5))
    await limiter.settle_orphan(who, "req_0", Use(), lease.at, used=9, nano=60)
    assert await state(limiter, lease.purses[0][0]) == (60, 20)


async def overdue(limiter, lease) -> None:
    """An hour goes by."""
    key = lease.purses[0][1].key
    redis = limiter._store._redis
    await redis.hset(key, f"open {lease.name}", f"{lease.money} 1")
    await redis.delete(lease.name)
    await limiter.prune()


async def test_a_reservation_that_nobody_settled_is_charged_as_the_ledger_says(redis_url, who):
    alive, ledger, lease = await dead(redis_url, who)
    ledger.costs_of["req_1"] = 44
    await overdue(alive, lease)
    await alive.settle_orphan(who, "req_1", Use(), lease.at, used=9, nano=44)
    assert await state(alive, lease.purses[0][0]) == (44, 50)
    await alive.close()


async def test_one_that_the_ledger_does_not_know_is_let_go_and_charged_when_it_does(redis_url, who):
    alive, ledger, lease = await dead(redis_url, who)
    rule = lease.purses[0][0]
    await overdue(alive, lease)
    assert await state(alive, rule) == (0, 50)
    ledger.costs_of["req_1"] = 44  # its gateway came back at last
    await alive.settle_orphan(who, "req_1", Use(), lease.at, used=9, nano=44)
    assert await state(alive, rule) == (44, 50)
    await alive.close()


class Late(MemoryStore):
    """Takes what it is asked for, and answers too late."""

    late = False

    async def take(self, asks, lease):
        verdict = await super().take(asks, lease)
        if self.late:
            await asyncio.sleep(1)
        return verdict


async def test_what_a_late_store_took_for_nobody_goes_back(who):
    shared = Late()
    rules = book(money={("project", who.project): monthly(500)})
    limiter = limiter_of(DegradingStore(shared, deadline_s=0.05), rules)
    lease = await limiter.reserve(who, "req_1", 1, demand=demand())
    rule = lease.purses[0][0]
    shared.late = True
    with pytest.raises(QuotaBackendUnavailable):
        await limiter.reserve(who, "req_2", 1, demand=demand())
    shared.late = False
    assert await state(limiter, rule) == (0, 100)
    await limiter.watch()
    assert await state(limiter, rule) == (0, 50)


async def test_money_is_refused_while_the_ledger_cannot_say_all(store, who):
    async def silent(rule, now, without=()):
        raise QuotaBackendUnavailable("not now", retry_after=1.0)

    rules = book(money={("project", who.project): monthly(500)})
    limiter = limiter_of(store, rules, spending=silent)
    for _ in range(2):
        with pytest.raises(QuotaBackendUnavailable):
            await limiter.reserve(who, "req_1", 1, demand=demand())
    limiter = limiter_of(store, rules, spending=Ledger(req_0=480))
    with pytest.raises(BudgetExhausted):
        await limiter.reserve(who, "req_2", 1, demand=demand(prompt=30))


async def test_a_period_that_is_over_by_the_stores_clock_is_counted_too(store, who):
    """Clocks may differ, and requests may be long."""
    now, ledger = Now("2025-07-31T23:59:59+00:00"), Ledger(req_0=60)
    rules = book(money={("project", who.project): monthly(200)})
    limiter = limiter_of(store, rules, spending=ledger, now=now)
    first = await limiter.reserve(who, "req_1", 1, demand=demand(block=20))
    await limiter.settle(first, 1, 30)
    second = await limiter.reserve(who, "req_2", 1, demand=demand(block=20))
    assert await state(limiter, second.purses[0][0]) == (90, second.money)
    assert ledger.read == 1


async def test_a_days_tokens_that_are_over_by_the_stores_clock_are_limited_too(store, who):
    now = Now("2025-07-31T23:59:59+00:00")
    rates = {("project", who.project): Rates(tokens_per_day=100)}
    limiter = limiter_of(store, book(rates), now=now)
    await limiter.reserve(who, "req_1", 60)
    with pytest.raises(TokensLimited):
        await limiter.reserve(who, "req_2", 60)


async def test_a_store_that_forgets_at_once_is_not_asked_for_ever(who):
    class Forgetful(MemoryStore):
        async def take(self, asks, lease):
            return Verdict(0, 0, [], [], unseeded=[0])

    rules = book(money={("project", who.project): monthly(500)})
    limiter = limiter_of(Forgetful(), rules)
    with pytest.raises(QuotaBackendUnavailable):
        await limiter.reserve(who, "req_1", 1, demand=demand())
