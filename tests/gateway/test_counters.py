"""Live counters of budgets against the ledger: equal to the nano-dollar, or told with the place."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote

import pytest

from gateway.catalog.models import Adapter
from gateway.config import Secret
from gateway.counters import CounterCheck
from gateway.db import Database
from gateway.errors import BudgetExhausted
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.identity.principal import Principal
from gateway.identity.service import IdentityService, KeyTerms
from gateway.limits.degrading import DegradingStore
from gateway.limits.limiter import RateLimiter
from gateway.limits.memory import MemoryStore
from gateway.limits.models import Level
from gateway.limits.period import period_at, period_of
from gateway.limits.redis_store import RedisStore
from gateway.limits.rules import Allowance, Rates, Subject, Use, rule_of
from gateway.limits.service import LimitService
from gateway.metrics import Metrics
from gateway.metrics_page import MetricsPage
from gateway.redis import connect
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import Price
from gateway.usage.reconcile import Findings
from gateway.usage.recorder import Recorder
from gateway.usage.repository import LedgerRepository
from gateway.usage.repricing import Repricing
from gateway.usage.service import PriceList
from tests.gateway.quotas import book, demand, limiter_of, monthly
from tests.gateway.test_admin_cli import Shell
from tests.gateway.test_key_scopes import PEPPERS
from tests.gateway.test_ledger import NOON, NOON_NS, finished, started

EACH = 17  # nano-dollars of one request


@pytest.fixture(params=["memory", "redis"])
async def store(request):
    if request.param == "memory":
        yield MemoryStore()
        return
    client = connect(Secret(request.getfixturevalue("redis_url")), timeout_s=5)
    await client.flushall()
    yield RedisStore(client)
    await client.aclose()


class Desk:
    """A gateway's recorder, ledger and limiter."""

    def __init__(self, database, recorder, store, rules) -> None:
        self.database, self.recorder, self.store = database, recorder, store
        self.ledger = Ledger(recorder.log, database, live_from=recorder.first_segment)
        self.limiter = RateLimiter(store, rules=lambda: rules, now=lambda: NOON,
                                   spending=LedgerSpending(database, self.ledger))  # fmt: skip

    async def serve(self, name: str, *, limited_as: str = "", **facts) -> None:
        """``limited_as``: what limits call its model, where a client called it by an alias."""
        record = started(name, at_ns=NOON_NS, **facts)
        who = Principal(organisation=record.organisation, project=record.project,
                        project_name="a", key=record.key, tenant="t")  # fmt: skip
        lease = await self.limiter.reserve(
            who, name, 1, use=Use(limited_as or record.model, record.user), demand=demand()
        )
        await self.recorder.started(record)
        await self.recorder.finished(finished(name))
        await self.limiter.settle(lease, 1, EACH)

    async def check(self) -> Findings:
        await self.ledger.settle()
        findings = Findings()
        await CounterCheck(self.database, self.store.purses, NOON, wait_s=0).add_to(findings)
        return findings


async def desk_of(database, tmp_path, store, rules) -> Desk:
    async with database.unit_of_work() as session:
        LedgerRepository(session).add_price(
            Price(id="prc_1", base_model="smol", input_pico=1_000, cached_input_pico=1_000,
                  output_pico=1_000, effective_from=NOON - timedelta(days=1), created_at=NOON)
        )  # fmt: skip
    return Desk(database, await Recorder.open(UsageLog(tmp_path / "usage")), store, rules)


async def test_a_budget_for_an_adapter_counts_what_came_by_its_aliases(database, tmp_path, store):
    """The ledger says what a client wrote; limits go by the adapter's name."""
    async with database.publish() as session:
        project = await IdentityService(session, NOON).create_project("web")
        await session.flush()
        for name in ("support", "json"):
            session.add(
                Adapter(id=f"adp_{name}", project_id=project.id, name=name, version=1,
                        digest="d" * 64, rank=8, state="ready", created_at=NOON, nbytes=1)
            )  # fmt: skip
    rules = book(money={("project", project.id, "support"): monthly(9_000)})
    desk = await desk_of(database, tmp_path, store, rules)
    facts = {"organisation": project.organisation_id, "project": project.id}
    for name, model, adapter in (
        ("req_1", "support", "support"), ("req_2", "prod", "support"),
        ("req_3", "support@1", "support"), ("req_4", "support-next", "json"),
    ):  # fmt: skip
        await desk.serve(
            name, limited_as=adapter, model=model, adapter_id=f"adp_{adapter}", **facts
        )
    findings = await desk.check()
    assert findings.compared["budget counters"] == 1
    assert findings.differences == []
    [purse] = await store.purses()
    assert purse.spent == 3 * EACH
    rule = replace(rule_of(purse.key)[0], limit=9_000)
    spending = LedgerSpending(database, desk.ledger)
    assert await spending(rule, NOON) == 3 * EACH
    assert await spending(rule, NOON, ["req_2", "req_4"]) == 2 * EACH


async def test_counters_of_every_level_say_what_the_ledger_says(database, tmp_path, store):
    rules = book(money={
        ("organisation", "org_1"): monthly(9_000), ("project", "prj_1"): monthly(9_000),
        ("project", "prj_1", "support"): monthly(9_000, time_zone="Pacific/Auckland"),
        ("key", "key_1"): Allowance(period="day", nano=9_000, time_zone="Etc/GMT-5"),
        ("customer", "prj_1/a:b/c"): monthly(9_000),
    })  # fmt: skip
    desk = await desk_of(database, tmp_path, store, rules)
    await desk.serve("req_1")
    await desk.serve("req_2", model="json", key="key_2")
    await desk.serve("req_3", user="a:b/c")
    findings = await desk.check()
    assert findings.compared["budget counters"] == 5
    assert findings.differences == []
    spent = {rule_of(p.key)[0].subject: p.spent for p in await store.purses()}
    assert spent == {
        Subject(Level.ORGANISATION, "org_1"): 51, Subject(Level.PROJECT, "prj_1"): 51,
        Subject(Level.PROJECT, "prj_1", "support"): 34, Subject(Level.KEY, "key_1"): 34,
        Subject(Level.CUSTOMER, "prj_1/a:b/c"): 17,
    }  # fmt: skip
    await desk.recorder.close()


async def test_a_counter_that_drifted_is_told_with_its_place(database, tmp_path, store):
    desk = await desk_of(database, tmp_path, store, book(money={("key", "key_1"): monthly(9_000)}))
    await desk.serve("req_1")
    [purse] = await store.purses()
    rule, _ = rule_of(purse.key)
    await store.settle("lt:{org_1}:lease:req_ghost", tokens=0, money=5, lost=[rule.ask(0, NOON)])
    [difference] = (await desk.check()).differences
    assert (difference.check, difference.ledger, difference.other) == ("counter", 17, 22)
    assert purse.key in difference.place
    await desk.recorder.close()


async def test_open_reservations_are_counted_and_no_difference(database, tmp_path, store):
    desk = await desk_of(database, tmp_path, store, book(money={("key", "key_1"): monthly(9_000)}))
    await desk.serve("req_1")
    who = Principal(
        organisation="org_1", project="prj_1", project_name="a", key="key_1", tenant="t"
    )
    await desk.limiter.reserve(who, "req_2", 1, demand=demand())
    findings = await desk.check()
    assert findings.compared["open reservations"] == 1
    assert findings.differences == []
    await desk.recorder.close()


async def test_a_rotated_keys_counter_and_credits_are_compared_too(database, tmp_path, store):
    async with database.publish() as session:
        service = IdentityService(session, NOON - timedelta(days=3))
        project = await service.create_project("acme")
        await session.flush()
        old = service.issue(project, KeyTerms(), peppers=PEPPERS)
        await session.flush()
        new = await service.rotate(old.id, timedelta(hours=1), peppers=PEPPERS)
        credits = LimitService(session, project.organisation_id, NOON - timedelta(days=2))
        credits.grant(9_000)
        since = NOON - timedelta(days=2)
    rules = book(money={
        ("key", old.id): monthly(9_000),
        ("organisation", project.organisation_id): Allowance(period=None, nano=9_000, since=since),
    })  # fmt: skip
    rules = type(rules)(rules.rates, rules.allowances, {}, 0, {new.id: old.id})
    desk = await desk_of(database, tmp_path, store, rules)
    facts = {"organisation": project.organisation_id, "project": project.id}
    for name, key in (("req_1", old.id), ("req_2", new.id)):
        await desk.serve(name, key=key, **facts)
    findings = await desk.check()
    assert findings.differences == []
    assert [p.spent for p in await store.purses()] == [34, 34]
    await desk.recorder.close()


@pytest.mark.parametrize("kind", ["day", "month"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles", "Etc/GMT-5"])
def test_a_counters_name_says_which_budget_and_period_it_is_of(kind, zone):
    money = Allowance(period=kind, nano=5, time_zone=zone)
    rules = book(money={("customer", "p/x:y", "a:b@c"): money})
    who = Principal(organisation="org_1", project="p", project_name="a", key="k", tenant="t")
    [rule] = rules.of(who, Use("a:b@c", "x:y"))
    found, period_id = rule_of(rule.ask(0, NOON).key)
    assert (found.organisation, found.subject, found.name) == ("org_1", rule.subject, rule.name)
    assert (found.period, found.time_zone) == (kind, zone)
    assert period_of(period_id, zone) == period_at(NOON, kind, zone)


async def set_budget(url: str) -> None:
    database = Database(url)
    async with database.publish() as session:
        limits = LimitService(session, "org_x", NOON)
        await limits.set_budget(Subject(Level.PROJECT, "prj_1"), "month", 9_000)
    await database.close()


def test_reconcile_compares_redis_and_exits_with_1_where_it_differs(tmp_path, capsys, redis_url):
    import redis as blocking

    client = blocking.Redis.from_url(redis_url)
    client.flushall()
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/books.db", capsys)
    shell.ok("tenant", "create", "acme")
    asyncio.run(set_budget(f"sqlite+aiosqlite:///{tmp_path}/books.db"))
    key = f"lt:{{org_x}}:project:prj_1::money-month-{quote('UTC', safe='')}:2026-11"
    client.hset(key, mapping={"spent": 0, "held": 0, "version": 10**14})
    rows = shell.ok("reconcile", "--redis-url", redis_url)
    assert {"budget counters": 1, "open reservations": 0}.items() <= {
        row["found"]: row["other"] for row in rows
    }.items()
    client.hset(key, "spent", 7)
    code, out, _ = shell.run("reconcile", "--json", "--redis-url", redis_url)
    assert code == 1
    assert "DIFFERENCE: counter" in out
    assert "counters there" in shell.fails("reconcile", "--gateway", "127.0.0.1:1")
    client.flushall()


async def test_a_price_a_thousand_times_too_high_locks_out_until_it_is_corrected(
    database, tmp_path
):
    """The operator corrects the price and reprices; the next request passes, and no sooner."""
    store, now = MemoryStore(), NOON + timedelta(hours=1)
    async with database.publish() as session:
        service = IdentityService(session, NOON)
        project = await service.create_project("acme")
        await session.flush()
        key = service.issue(project, KeyTerms(), peppers=PEPPERS)
        await LimitService(session, project.organisation_id, NOON).set_budget(
            Subject(Level.PROJECT, project.id), "month", 100
        )
        PriceList(session, NOON - timedelta(days=1)).set("smol", ("1", "1", "1"))
    snapshot = LiveSnapshot(database, PEPPERS, base_model="smol")
    await snapshot.refresh()
    recorder = await Recorder.open(UsageLog(tmp_path / "usage"))
    ledger = Ledger(recorder.log, database, live_from=recorder.first_segment)
    limiter = RateLimiter(store, rules=snapshot.rules, now=lambda: now,
                          spending=LedgerSpending(database, ledger))  # fmt: skip
    who = snapshot.authenticate(key.text)
    facts = {"organisation": who.organisation, "project": who.project, "key": who.key}
    await recorder.started(started("req_1", at_ns=NOON_NS, **facts))
    await recorder.finished(finished("req_1"))  # 17 tokens: 17,000 nano-dollars of a budget of 100
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            await limiter.reserve(who, "req_2", 1, demand=demand())
    async with database.publish() as session:
        PriceList(session, NOON - timedelta(days=1)).set("smol", ("0.001", "0.001", "0.001"))
    await Repricing(database, now).run(NOON - timedelta(days=1), now)
    await snapshot.refresh()
    lease = await limiter.reserve(who, "req_3", 1, demand=demand())
    levels = await limiter.levels([lease.purses[0][0]])
    assert (levels.levels, levels.held) == ([17], [lease.money])
    await recorder.close()


async def got(page: MetricsPage, path: str) -> tuple[int, bytes]:
    sent: list[dict] = []

    async def send(message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": None}
    await page(scope, None, send)
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])


async def test_a_gateway_shows_its_counters_and_how_limits_are_kept_beside_its_metrics():
    page = MetricsPage(Metrics(), Fleet(Static(()), gateway="test"))
    assert (await got(page, "/counters"))[0] == 404  # it has not opened yet
    rules = book(money={("key", "key_1"): monthly(9_000)})
    page.limiter = limiter_of(MemoryStore(), rules)
    who = Principal(
        organisation="org_1", project="prj_1", project_name="a", key="key_1", tenant="t"
    )
    lease = await page.limiter.reserve(who, "req_2", 1, demand=demand())
    status, body = await got(page, "/counters")
    assert (status, json.loads(body)) == (200, [
        {"key": lease.purses[0][1].key, "spent": 0, "held": 50,
         "open": [{"lease": lease.name, "nano": 50}], "version": 0}
    ])  # fmt: skip
    _, text = await got(page, "/metrics")
    assert b"loratorio_gateway_requests_reserving 1.0" in text
    assert b"loratorio_gateway_limits_degraded 0.0" in text

    class Gone(MemoryStore):
        async def take(self, asks, lease):
            raise ConnectionError("gone")

    rates = book({("key", "key_1"): Rates(requests_per_minute=3)})
    page.limiter = limiter_of(DegradingStore(Gone(), deadline_s=0.1), rates)
    await page.limiter.reserve(who, "req_3", 1)
    _, text = await got(page, "/metrics")
    assert b"loratorio_gateway_limits_degraded 1.0" in text
    assert b"loratorio_gateway_limits_local_grants 1.0" in text
