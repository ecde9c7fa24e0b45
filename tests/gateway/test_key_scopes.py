"""Keys that are for some paths, models or addresses alone, and keys that take another's place."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from gateway.db import Database
from gateway.errors import Conflict, InvalidRequest, ResourceNotFound, Unauthenticated
from gateway.http import Request
from gateway.identity.pepper import Peppers
from gateway.identity.principal import Principal
from gateway.identity.repository import IdentityRepository
from gateway.identity.service import IdentityService, KeyTerms
from gateway.inference.gate import address_of
from gateway.limits.limiter import RateLimiter
from gateway.limits.memory import MemoryStore
from gateway.limits.models import Level
from gateway.limits.rules import Rates, RuleBook, Subject, Use
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import Price
from gateway.usage.recorder import Recorder
from gateway.usage.repository import LedgerRepository
from tests.gateway.quotas import Now, book, demand, monthly
from tests.gateway.serving import ADMIN_KEY, BASE, KEY, LIMITED_KEY, ask, post, serving
from tests.gateway.test_admin_cli import Shell
from tests.gateway.test_ledger import NOON, finished, started

PEPPERS = Peppers({1: b"p" * 32}, 1)
CHAT = "/v1/chat/completions"
HELLO = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
PROMPT = {"model": BASE, "prompt": "Hello", "max_tokens": 2}


async def statuses(tmp_path, requests, hops=0, **scopes) -> list[int]:
    async with serving(tmp_path, forwarded_hops=hops) as server:
        keys = server.snapshot.keys
        keys[KEY] = dataclasses.replace(keys[KEY], **scopes)
        return [(await ask(server.port, request)).status for request in requests]


async def test_a_key_for_some_paths_is_refused_on_others(tmp_path):
    paths = [post(HELLO), post(PROMPT, path="/v1/completions")]
    assert await statuses(tmp_path, paths, endpoints=(CHAT,)) == [200, 403]
    assert await statuses(tmp_path, paths, endpoints=("/v1",)) == [200, 200]
    assert await statuses(tmp_path, paths, endpoints=("/v1/chat/comp",)) == [403, 403]


async def test_a_key_for_some_addresses_is_refused_from_others(tmp_path):
    for networks, status in ((("127.0.0.0/8",), 200), (("10.0.0.0/8", "::1/128"), 403)):
        assert await statuses(tmp_path, [post(HELLO)], networks=networks) == [status]


async def test_a_key_that_is_for_other_paths_or_addresses_is_told_what_is_left(tmp_path):
    """A path that is not its own counts against it. An address does not: the key may be stolen."""
    async with serving(tmp_path) as server:
        keys = server.snapshot.keys
        limited = keys[LIMITED_KEY]
        for scope, left in (
            ({"endpoints": ("/v1/models",)}, ["2", "1", "0"]),
            ({"networks": ("10.0.0.0/8",)}, ["3", "3", "3"]),
        ):
            keys[LIMITED_KEY] = dataclasses.replace(limited, key=f"key_{left[0]}", **scope)
            got = [await ask(server.port, post(HELLO, key=LIMITED_KEY)) for _ in left]
            assert [each.status for each in got] == [403] * 3
            assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == left
            assert got[0].headers["openai-organization"] == limited.organisation
        admin = await ask(server.port, post(HELLO, key=ADMIN_KEY))
        assert (admin.status, admin.error["code"]) == (403, "permission_denied")


async def test_the_address_is_what_our_own_proxies_say_and_nobody_else(tmp_path):
    ours = ("203.0.113.0/24",)
    requests = [
        post(HELLO, "x-forwarded-for: 203.0.113.9"),
        post(HELLO, "x-forwarded-for: 203.0.113.9, 198.51.100.1"),  # the first is the client's lie
        post(HELLO, "x-forwarded-for: 198.51.100.1, 203.0.113.9:4711"),
        post(HELLO),
    ]
    assert await statuses(tmp_path, requests, hops=1, networks=ours) == [200, 403, 200, 403]
    assert await statuses(tmp_path, requests, networks=ours) == [403] * 4


@pytest.mark.parametrize(
    ("headers", "hops", "address"),
    [
        ([], 0, "192.0.2.1"),
        ([], 1, ""),
        ([b"203.0.113.9"], 0, "192.0.2.1"),
        ([b"203.0.113.9"], 2, ""),
        ([b"a, b", b"203.0.113.9, 10.0.0.1"], 2, "203.0.113.9"),
        ([b"[2001:db8::1]:443"], 1, "2001:db8::1"),
        ([b"2001:db8::1"], 1, "2001:db8::1"),
    ],
)
def test_hops_are_counted_from_the_nearest_proxy(headers, hops, address):
    raw = [(b"x-forwarded-for", value) for value in headers]
    scope = {"method": "GET", "path": "/", "headers": raw, "client": ("192.0.2.1", 5)}
    assert address_of(Request(scope, None), hops) == address


@pytest.mark.parametrize(
    ("terms", "param"),
    [
        ({"networks": ("10.0.0.1/8",)}, "networks"),
        ({"networks": ("localhost",)}, "networks"),
        ({"networks": ()}, "networks"),
        ({"endpoints": ("v1/chat",)}, "endpoints"),
        ({"endpoints": ("/v1/a b",)}, "endpoints"),
        ({"endpoints": ("/v1/x",) * 101}, "endpoints"),
        ({"models": ("",)}, "models"),
        ({"models": ("a\nb",)}, "models"),
    ],
)
def test_scopes_that_are_none_are_refused_by_name(terms, param):
    with pytest.raises(InvalidRequest) as refusal:
        KeyTerms(**terms)
    assert refusal.value.param == param
    assert param in refusal.value.message


def test_one_address_is_a_range_of_one():
    assert KeyTerms(networks=("10.1.2.3", "::1")).networks == ("10.1.2.3/32", "::1/128")


async def live(database: Database, clock) -> LiveSnapshot:
    snapshot = LiveSnapshot(database, PEPPERS, base_model=BASE, clock=lambda: clock().timestamp())
    await snapshot.refresh()
    return snapshot


async def test_a_rotated_key_and_its_successor_work_until_the_overlap_ends(database):
    now = Now("2026-12-01T00:00:00+00:00")
    async with database.publish() as session:
        service = IdentityService(session, now())
        project = await service.create_project("acme")
        terms = KeyTerms(name="web", requests_per_minute=7, networks=("10.0.0.0/8",))
        old = service.issue(project, terms, peppers=PEPPERS)
    async with database.publish() as session:
        service = IdentityService(session, now())
        new = await service.rotate(old.id, timedelta(hours=2), peppers=PEPPERS)
        with pytest.raises(Conflict):
            await service.rotate(old.id, timedelta(hours=2), peppers=PEPPERS)
        with pytest.raises(ResourceNotFound):
            await service.rotate("key_none", timedelta(0), peppers=PEPPERS)
        with pytest.raises(InvalidRequest):
            await service.rotate(new.id, timedelta(days=91), peppers=PEPPERS)
    snapshot = await live(database, now)
    before, after = snapshot.authenticate(old.text), snapshot.authenticate(new.text)
    assert dataclasses.replace(after, key=before.key) == before
    now.at += timedelta(hours=2)
    assert snapshot.authenticate(new.text) == after
    with pytest.raises(Unauthenticated):
        snapshot.authenticate(old.text)
    async with database.unit_of_work() as session:
        with pytest.raises(Conflict):
            await IdentityService(session, now()).rotate(old.id, timedelta(0), peppers=PEPPERS)
        row = await IdentityRepository(session).key(new.id)
        assert (row.replaces, row.name, row.expires_at) == (old.id, "web", None)


def who(key: str) -> Principal:
    return Principal(organisation="org_1", project="prj_1", project_name="a", key=key, tenant="t",
                     requests_per_minute=9)  # fmt: skip


def test_a_line_of_keys_has_one_set_of_counters():
    rules = RuleBook(
        {Subject(Level.KEY, "key_1"): Rates(tokens_per_day=5, concurrency=2),
         Subject(Level.KEY, "key_3"): Rates(tokens_per_day=8)},
        {Subject(Level.KEY, "key_1"): (monthly(50),)},
        replaced={"key_2": "key_1", "key_3": "key_2", "key_9": "key_8"},
    )  # fmt: skip
    lines = [
        {rule.name: rule.limit for rule in rules.of(who(f"key_{n}"), Use("smol"))}
        for n in (1, 2, 3)
    ]
    assert lines[0] == lines[1]
    assert lines[2].keys() == lines[0].keys()
    assert lines[2]["lt:{org_1}:key:key_1::tokens_per_day"] == 8  # its own goes before
    [money] = [r for r in rules.of(who("key_2"), Use()) if r.what.startswith("money")]
    assert money.keys == ("key_1", "key_2", "key_3")


async def test_a_budget_of_a_key_counts_what_the_key_before_it_spent(database, tmp_path):
    async with database.unit_of_work() as session:
        LedgerRepository(session).add_price(
            Price(id="prc_1", base_model="smol", input_pico=1_000, cached_input_pico=1_000,
                  output_pico=1_000, effective_from=NOON - timedelta(days=1), created_at=NOON)
        )  # fmt: skip
    recorder = await Recorder.open(UsageLog(tmp_path / "usage"))
    for name, key in (("req_1", "key_1"), ("req_2", "key_2"), ("req_3", "key_other")):
        await recorder.started(started(name, key=key))
        await recorder.finished(finished(name))
    ledger = Ledger(recorder.log, database, live_from=recorder.first_segment)
    rules = book(money={("key", "key_1"): monthly(100)})
    rules = dataclasses.replace(rules, replaced={"key_2": "key_1"})
    limiter = RateLimiter(MemoryStore(), rules=lambda: rules, now=lambda: NOON,
                          spending=LedgerSpending(database, ledger))  # fmt: skip
    lease = await limiter.reserve(who("key_2"), "req_4", 1, demand=demand())
    assert (await limiter.levels([lease.purses[0][0]])).levels == [34]  # 17 by each
    await recorder.close()


def test_an_operator_rotates_a_key_and_scopes_another(database_url, tmp_path, capsys):
    shell = Shell(tmp_path, database_url, capsys)
    shell.ok("tenant", "create", "acme")
    made = shell.ok("key", "create", "--tenant", "acme", "--networks", "10.0.0.0/8", "127.0.0.1")
    again = shell.ok("key", "rotate", made["id"], "--overlap", "0")
    assert again["replaces"] == made["id"]
    snapshot = shell.live()
    assert snapshot.authenticate(again["key"]).networks == ("10.0.0.0/8", "127.0.0.1/32")
    with pytest.raises(Unauthenticated):
        snapshot.authenticate(made["key"])
    later = shell.ok("key", "rotate", again["id"], "--overlap", "12h")
    old = datetime.fromisoformat(later["old_expires"])
    assert timedelta(hours=11) < old - datetime.now(UTC) < timedelta(hours=12)
    assert "rotated already" in shell.fails("key", "rotate", again["id"])
    assert "90 days" in shell.fails("key", "rotate", later["id"], "--overlap", "91d")
    states = {row["id"]: row["state"] for row in shell.ok("key", "list")}
    assert states == {made["id"]: "expired", again["id"]: "active", later["id"]: "active"}
    assert "keys that call models" in shell.fails("key", "create", "--admin", "--models", "smol")
