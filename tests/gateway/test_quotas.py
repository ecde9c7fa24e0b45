"""Every level at once, in one suite for both stores: all is taken, or nothing is."""

import asyncio
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Secret
from gateway.errors import (
    BudgetExhausted,
    BudgetReserved,
    ConcurrencyLimited,
    DayLimited,
    GatewayError,
    InvalidRequest,
    ModelUnpriced,
    NeverWithinTokenLimit,
    QuotaBackendUnavailable,
    RequestsLimited,
    TokensLimited,
)
from gateway.identity.principal import Principal
from gateway.limits.degrading import DegradingStore
from gateway.limits.lease import Price
from gateway.limits.memory import MemoryStore
from gateway.limits.period import period_at
from gateway.limits.redis_store import RedisStore
from gateway.limits.rules import Allowance, Rates, RuleBook, Use
from gateway.limits.store import SLOT_MS
from gateway.redis import connect
from tests.fakes.clock import FakeClock
from tests.gateway.quotas import Now, book, demand, limiter_of, monthly, somebody


@pytest.fixture
def who() -> Principal:
    return somebody()


@pytest.fixture(params=["memory", "redis"])
async def store(request):
    if request.param == "memory":
        yield MemoryStore()
        return
    store = RedisStore(connect(Secret(request.getfixturevalue("redis_url")), timeout_s=2))
    yield store
    await store.close()


async def passed(limiter, who, count, tokens=1, **more) -> int:
    async def one() -> bool:
        try:
            await limiter.reserve(who, f"req_{uuid4().hex}", tokens, **more)
        except GatewayError:
            return False
        return True

    return sum(await asyncio.gather(*(one() for _ in range(count))))


@pytest.mark.parametrize("level", ["organisation", "project", "key", "customer", "tag"])
async def test_each_level_limits_by_itself_and_is_named(store, who, level):
    ids = {"organisation": who.organisation, "project": who.project, "key": who.key,
           "customer": f"{who.project}/bob", "tag": f"{who.project}/team=a"}  # fmt: skip
    use = Use("smol", "bob", ("team=a",))
    limiter = limiter_of(store, book({(level, ids[level]): Rates(requests_per_minute=3)}))
    assert await passed(limiter, who, 9, use=use, demand=demand()) == 3
    with pytest.raises(RequestsLimited) as refusal:
        await limiter.reserve(who, "req_x", 1, use=use, demand=demand())
    assert f"{level} {ids[level]}" in refusal.value.message
    assert 0 < refusal.value.retry_after <= 20


async def test_a_refusal_at_one_level_takes_nothing_of_any_other(store, who):
    rules = book({
        ("organisation", who.organisation): Rates(requests_per_minute=100, tokens_per_day=1000),
        ("project", who.project): Rates(tokens_per_minute=500),
        ("key", who.key): Rates(concurrency=1),
    }, {("project", who.project): monthly(10_000)})  # fmt: skip
    limiter = limiter_of(store, rules)
    first = await limiter.reserve(who, "req_1", 10, demand=demand())
    for n in range(20):
        with pytest.raises(ConcurrencyLimited):
            await limiter.reserve(who, f"req_b{n}", 10, demand=demand())
    room = await limiter.headroom(who)
    assert room.remaining_requests == 99
    await limiter.settle(first, 5, 7)
    await limiter.reserve(who, "req_2", 10, demand=demand())  # the slot is free again


async def test_limits_of_one_model_do_not_touch_others(store, who):
    rules = book({("project", who.project, "support"): Rates(requests_per_minute=2)})
    limiter = limiter_of(store, rules)
    assert await passed(limiter, who, 5, use=Use("support")) == 2
    assert await passed(limiter, who, 5, use=Use("json")) == 5


async def test_rates_and_tokens_of_a_day_are_kept_apart(store, who):
    rates = Rates(
        requests_per_minute=50, requests_per_day=4, tokens_per_minute=1000, tokens_per_day=90
    )
    limiter = limiter_of(store, book({("key", who.key): rates}))
    lease = await limiter.reserve(who, "req_1", 80)
    with pytest.raises(DayLimited) as refusal:
        await limiter.reserve(who, "req_2", 20)
    assert refusal.value.headers()["x-should-retry"] == "false"
    assert "tokens per day: limit 90, remaining 10" in refusal.value.message
    await limiter.settle(lease, 30)
    await limiter.reserve(who, "req_3", 20)
    with pytest.raises(NeverWithinTokenLimit):
        await limiter.reserve(who, "req_4", 91)


async def test_a_slot_is_free_once_settled_and_never_twice(store, who):
    limiter = limiter_of(store, book({("project", who.project): Rates(concurrency=2)}))
    leases = [await limiter.reserve(who, f"req_{n}", 1, demand=demand()) for n in range(2)]
    for _ in range(3):
        await limiter.settle(leases[0], 1)
    assert await passed(limiter, who, 5, demand=demand()) == 1


async def test_slots_that_nobody_renews_fall_free():
    now = 0
    who = Principal(organisation="o", project="p", project_name="a", key="k", tenant="t")
    store = MemoryStore(lambda: now)
    limiter = limiter_of(store, book({("key", "k"): Rates(concurrency=1)}))
    await limiter.reserve(who, "req_1", 1, demand=demand())
    now += SLOT_MS - 1
    await limiter.renew()
    now += SLOT_MS - 1
    assert await passed(limiter, who, 1, demand=demand()) == 0
    now += 1
    assert await passed(limiter, who, 1, demand=demand()) == 1


async def test_slots_are_renewed_in_redis_too(redis_url, who):
    store = RedisStore(connect(Secret(redis_url), timeout_s=2))
    limiter = limiter_of(store, book({("key", who.key): Rates(concurrency=1)}))
    lease = await limiter.reserve(who, "req_1", 1, demand=demand())
    await store._redis.zadd(lease.slots[0], {lease.name: 10**15})
    await limiter.renew()
    assert await store._redis.zscore(lease.slots[0], lease.name) < 10**14
    await store.close()


async def test_a_budget_is_reserved_extended_and_settled_to_the_nano(store, who):
    limiter = limiter_of(store, book(money={("project", who.project): monthly(100)}))
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    assert lease.money == 10 * 1 + 20 * 2
    [reservation] = await limiter.reservations(lease.purses[0][0])
    assert (reservation.lease, reservation.nano) == (lease.name, 50)
    assert (await limiter.extend(lease, held=50, want=30, least=2)).nano == 30
    assert (await limiter.extend(lease, held=80, want=30, least=2)).nano == 20  # what is left
    denied = await limiter.extend(lease, held=100, want=30, least=2)
    assert (denied.nano, denied.code) == (0, "project_spend_limit_exceeded")
    await limiter.settle(lease, 30, 41)
    await limiter.settle(lease, 30, 41)
    levels = await limiter.levels([lease.purses[0][0]])
    assert (levels.levels, levels.held) == ([41], [0])
    assert await limiter.reservations(lease.purses[0][0]) == []


async def test_less_than_a_block_is_granted_where_no_more_is_left(store, who):
    limiter = limiter_of(store, book(money={("key", who.key): monthly(30)}))
    assert (await limiter.reserve(who, "req_1", 30, demand=demand())).money == 30
    with pytest.raises(BudgetReserved) as refusal:  # some of it may come back
        await limiter.reserve(who, "req_2", 30, demand=demand())
    assert refusal.value.headers()["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("level", "code"),
    [("organisation", "organization_spend_limit_exceeded"),
     ("project", "project_spend_limit_exceeded"), ("key", "insufficient_quota")],
)  # fmt: skip
async def test_a_used_up_budget_says_which_and_never_to_retry(store, who, level, code):
    ids = {"organisation": who.organisation, "project": who.project, "key": who.key}
    limiter = limiter_of(store, book(money={(level, ids[level]): monthly(50)}))
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    await limiter.settle(lease, 30, 45)
    with pytest.raises(BudgetExhausted) as refusal:
        await limiter.reserve(who, "req_2", 30, demand=demand())
    assert refusal.value.detail_code == code
    assert refusal.value.headers()["x-should-retry"] == "false"
    assert ids[level] in refusal.value.message


async def test_the_smallest_of_several_budgets_binds_and_all_hold_the_same(store, who):
    rules = book(money={
        ("organisation", who.organisation): monthly(1000),
        ("project", who.project): monthly(70),
        ("key", who.key): monthly(60),
    })  # fmt: skip
    limiter = limiter_of(store, rules)
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    assert (await limiter.extend(lease, held=50, want=40, least=1)).nano == 10
    rules_of = [rule for rule, _ in lease.purses]
    assert (await limiter.levels(rules_of)).held == [60, 60, 60]


async def test_streams_may_finish_where_the_owner_chose_so(store, who):
    limiter = limiter_of(store, book(money={("project", who.project): monthly(50, soft=True)}))
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    assert (await limiter.extend(lease, held=50, want=200, least=1)).nano == 200
    await limiter.settle(lease, 30, 250)
    with pytest.raises(BudgetExhausted):
        await limiter.reserve(who, "req_2", 30, demand=demand())


@pytest.mark.parametrize(
    ("changed", "granted"),
    [(monthly(70), 20), (monthly(500), 200), (monthly(10), 0), (monthly(50, soft=True), 200),
     (None, 200)],
    ids=["a little more", "much more", "less than it holds", "may finish now", "removed"],
)  # fmt: skip
async def test_a_budget_that_is_changed_holds_at_once_for_what_runs(store, who, changed, granted):
    limiter = limiter_of(store, book(money={("project", who.project): monthly(50)}))
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    rules = RuleBook() if changed is None else book(money={("project", who.project): changed})
    limiter._rules = lambda: rules
    assert (await limiter.extend(lease, held=50, want=200, least=1)).nano == granted
    await limiter.settle(lease, 30, 50 + granted)
    [purse] = [each for each in await store.purses() if who.project in each.key]
    assert (purse.spent, purse.held, purse.open) == (50 + granted, 0, ())


@pytest.mark.parametrize("limits", [{}, {"requests_per_minute": 9}], ids=["free", "with a rate"])
@pytest.mark.parametrize("seen", [True, False], ids=["counted by then", "nobody counted yet"])
async def test_a_budget_that_comes_counts_what_runs_already(store, who, limits, seen):
    """It is not cut: nothing was reserved for it. But what it cost is spent."""
    rates = {("key", who.key): Rates(**limits)} if limits else {}
    limiter = limiter_of(store, book(rates))
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    rules = book(rates, money={("project", who.project): monthly(90)})
    limiter._rules = lambda: rules
    if seen:
        other = await limiter.reserve(who, "req_2", 30, demand=demand())
        await limiter.settle(other, 30, 20)
    await limiter.settle(lease, 30, 40)
    assert limiter.open == 0
    last = await limiter.reserve(who, "req_3", 30, demand=demand(block=100))
    assert last.money == (90 - 20 - 40 if seen else 90)  # the ledger, empty here, says the rest
    await limiter.settle(last, 30, 0)


async def test_what_costs_nothing_goes_on_when_a_budget_is_used_up(store, who):
    free = demand(price=Price(input=0, cached_input=0, output=0))
    limiter = limiter_of(store, book(money={("project", who.project): monthly(0)}))
    with pytest.raises(BudgetExhausted):
        await limiter.reserve(who, "req_1", 30, demand=demand())
    lease = await limiter.reserve(who, "req_2", 30, demand=free)
    assert lease.purses == ()
    await limiter.settle(lease, 30, 0)


async def test_a_model_without_a_price_is_refused_where_a_budget_applies(store, who):
    limiter = limiter_of(store, book(money={("project", who.project): monthly(50)}))
    with pytest.raises(ModelUnpriced):
        await limiter.reserve(who, "req_1", 30, demand=demand(price=None))
    free = limiter_of(store, RuleBook())
    await free.reserve(who, "req_2", 30, demand=demand(price=None))


async def test_counters_begin_with_what_the_ledger_says_and_ask_it_once(store, who):
    asked = []

    async def spending(rule, now, without=()):
        asked.append(rule.subject.id)
        await asyncio.sleep(0.01)
        return 60

    limiter = limiter_of(store, book(money={("key", who.key): monthly(100)}), spending=spending)
    assert await passed(limiter, who, 8, demand=demand(block=5)) == 2  # 20 each
    assert asked == [who.key]


async def test_a_redis_that_starts_empty_costs_no_money(redis_url, who):
    spent = 0

    async def spending(rule, now, without=()):
        return spent

    redis = connect(Secret(redis_url), timeout_s=2)
    rules = book(money={("key", who.key): monthly(200)})
    limiter = limiter_of(RedisStore(redis), rules, spending=spending)
    first = await limiter.reserve(who, "req_1", 30, demand=demand())
    second = await limiter.reserve(who, "req_2", 30, demand=demand())
    await redis.flushall()
    assert (await limiter.extend(first, held=50, want=50, least=1)).nano == 50  # holds 100 again
    await limiter.settle(second, 30, 40)
    rule = first.purses[0][0]
    levels = await limiter.levels([rule])
    assert (levels.levels, levels.held) == ([40], [100])
    await limiter.close()


async def test_a_month_that_ends_during_a_stream_pays_from_the_month_it_began_in(store, who):
    now = Now("2026-12-31T23:59:59+00:00")
    limiter = limiter_of(store, book(money={("key", who.key): monthly(100)}), now=now)
    lease = await limiter.reserve(who, "req_1", 30, demand=demand())
    now.at = Now("2027-01-01T00:00:01+00:00").at
    rule = lease.purses[0][0]
    fresh = await limiter.reserve(who, "req_2", 30, demand=demand())
    assert (await limiter.extend(lease, held=50, want=50, least=1)).nano == 50
    await limiter.settle(lease, 30, 90)
    await limiter.settle(fresh, 30, 11)
    assert (await limiter.levels([rule])).levels == [11]
    now.at = Now("2026-12-31T23:59:59+00:00").at
    assert (await limiter.levels([rule])).levels == [90]


async def test_without_the_store_rates_go_on_and_money_stops(who):
    class Gone(MemoryStore):
        async def take(self, asks, lease):
            raise ConnectionError("gone")

        async def extend(self, asks, lease, *, held):
            raise ConnectionError("gone")

    rates = {("project", who.project): Rates(requests_per_minute=4)}
    limiter = limiter_of(DegradingStore(Gone(), deadline_s=0.1), book(rates))
    assert await passed(limiter, who, 9, demand=demand()) == 4
    paid = book(rates, {("project", who.project): monthly(500)})
    limiter = limiter_of(DegradingStore(Gone(), deadline_s=0.1), paid)
    with pytest.raises(QuotaBackendUnavailable):
        await limiter.reserve(who, "req_1", 1, demand=demand())


async def test_a_settlement_that_the_store_missed_is_made_up_for(who):
    class Hiccup(MemoryStore):
        down = False

        async def settle(self, lease, **more):
            if self.down:
                raise ConnectionError("gone")
            return await super().settle(lease, **more)

    shared = Hiccup()
    rules = book(money={("project", who.project): monthly(500)})
    limiter = limiter_of(DegradingStore(shared, deadline_s=0.1), rules)
    lease = await limiter.reserve(who, "req_1", 1, demand=demand())
    shared.down = True
    await limiter.settle(lease, 30, 44)
    shared.down = False
    await limiter.renew()
    levels = await limiter.levels([lease.purses[0][0]])
    assert (levels.levels, levels.held) == ([44], [0])


async def test_what_was_counted_here_while_the_store_was_away_is_forgotten(who):
    class Away(MemoryStore):
        async def take(self, asks, lease):
            raise ConnectionError("gone")

    clock = FakeClock()
    store = DegradingStore(Away(), deadline_s=0.1, clock=clock)
    limiter = limiter_of(store, book({("project", who.project): Rates(requests_per_minute=40)}))
    for number in range(10):
        await limiter.reserve(who, f"req_{number}", 1)
    held = store._local
    assert (len(held._buckets), len(held._leases)) == (1, 10)
    for number in range(10):
        await limiter.settle(limiter._open[f"req_{number}"], 1)
    clock.advance(3600)
    await limiter.watch()  # the store answers
    await limiter.watch()
    assert (held._buckets, held._leases) == ({}, {})


def test_a_plan_fills_what_an_organisation_has_not_and_anyone_stands_for_customers():
    who = Principal(organisation="o", project="p", project_name="a", key="k", tenant="t",
                    requests_per_minute=7)  # fmt: skip
    rules = book({
        ("plan", "pro"): Rates(requests_per_minute=100, tokens_per_day=5),
        ("organisation", "o"): Rates(requests_per_minute=50),
        ("customer", "p/*"): Rates(requests_per_day=9),
    }, {("plan", "pro"): monthly(77)}, {"o": "pro"})  # fmt: skip
    found = {(r.subject.level, r.what): (r.limit, r.name) for r in rules.of(who, Use("m", "b/ob"))}
    assert found["organisation", "requests_per_minute"][0] == 50
    assert found["organisation", "tokens_per_day"][0] == 5
    assert found["organisation", "money-month-UTC"][0] == 77
    assert found["key", "requests_per_minute"][0] == 7
    assert found["customer", "requests_per_day"] == (
        9, "lt:{o}:customer:p%2Fb%2Fob::requests_per_day"
    )  # fmt: skip


ZURICH = "Europe/Zurich"


@pytest.mark.parametrize(
    ("at", "kind", "zone", "id", "start", "end"),
    [
        ("12-31T23:30", "month", "UTC", "2026-12", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("12-31T23:30", "month", ZURICH, "2027-01", "2026-12-31T23:00", "2027-01-31T23:00"),
        ("03-29T12:00", "day", ZURICH, "2026-03-29", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("10-25T12:00", "day", ZURICH, "2026-10-25", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("05-01T03:00", "day", "Asia/Tokyo", "2026-05-01", "2026-04-30T15:00", "2026-05-01T15:00"),
        ("02-28T12:00", "month", "UTC", "2026-02", "2026-02-01T00:00", "2026-03-01T00:00"),
    ],
)  # fmt: skip
def test_periods_are_the_calendars_of_their_zone(at, kind, zone, id, start, end):
    found = period_at(Now(f"2026-{at}+00:00")(), kind, zone)
    ends = Now(f"{start}+00:00")(), Now(f"{end}+00:00")()
    assert (found.id, found.start, found.end) == (id, *ends)


def test_a_time_zone_that_is_not_is_refused_by_name():
    for name in ("Mars/Olympus", "../../etc/passwd", ""):
        with pytest.raises(InvalidRequest, match="time_zone"):
            period_at(Now()(), "day", name)


steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "extend", "settle"]), st.integers(0, 9), st.integers(1, 60)
    ),
    max_size=80,
)


@settings(max_examples=120, deadline=None)
@given(steps, st.integers(20, 300), st.integers(20, 300))
def test_no_order_of_events_spends_more_than_a_budget(schedule, month, small):
    """Grants are what may be spent, so their sum is what must stay within."""
    who = Principal(organisation="o", project="p", project_name="a", key="k", tenant="t")
    rules = book(money={("project", "p"): monthly(month), ("key", "k"): monthly(small)})
    limiter = limiter_of(MemoryStore(), rules)

    async def play() -> None:
        held: dict[int, list] = {}
        spent = 0
        for number, (what, slot, amount) in enumerate(schedule):
            if what == "reserve" and slot not in held:
                try:
                    ask = demand(prompt=amount // 2, block=amount)
                    lease = await limiter.reserve(who, f"req_{number}", 1, demand=ask)
                    held[slot] = [lease, lease.money]
                except (BudgetExhausted, TokensLimited):
                    pass
            elif what == "extend" and slot in held:
                lease, money = held[slot]
                held[slot][1] += (
                    await limiter.extend(lease, held=money, want=amount, least=1)
                ).nano
            elif what == "settle" and slot in held:
                lease, money = held.pop(slot)
                used = money * amount // 60
                spent += used
                await limiter.settle(lease, 1, used)
            assert spent + sum(money for _, money in held.values()) <= min(month, small)

    asyncio.run(play())


def test_prepaid_credit_is_one_sum_without_a_period():
    who = Principal(organisation="o", project="p", project_name="a", key="k", tenant="t")
    credit = Allowance(period=None, nano=90)
    limiter = limiter_of(MemoryStore(), book(money={("organisation", "o"): credit}))

    async def play() -> None:
        lease = await limiter.reserve(who, "req_1", 1, demand=demand())
        await limiter.settle(lease, 30, 85)
        with pytest.raises(BudgetExhausted) as refusal:
            await limiter.reserve(who, "req_2", 1, demand=demand())
        assert refusal.value.detail_code == "credit_balance_exhausted"

    asyncio.run(play())
