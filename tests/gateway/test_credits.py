"""Prepaid credits: used in the order in which they expire, gone when they have, never revived."""

import asyncio
from datetime import datetime, timedelta

import pytest

from gateway.audit.repository import AuditRepository
from gateway.errors import BudgetExhausted, QuotaBackendUnavailable
from gateway.expiry import CreditExpiry
from gateway.identity.principal import Principal
from gateway.identity.service import IdentityService
from gateway.limits.credits import Grant, boundaries, left
from gateway.limits.limiter import RateLimiter
from gateway.limits.memory import MemoryStore
from gateway.limits.repository import LimitRepository
from gateway.limits.service import LimitService, rule_book
from tests.gateway.quotas import Now, demand
from tests.gateway.test_admin_cli import Shell


def day(number: int) -> datetime:
    return Now(f"2026-12-{number:02d}T00:00:00+00:00")()


def grant(name: str, nano: int, since: int, until: int | None = None) -> Grant:
    return Grant(name, nano, day(since), day(until) if until else None)


@pytest.mark.parametrize(
    ("grants", "spent", "remaining"),
    [
        # One that expires first is used first, whichever came first.
        ([grant("a", 100, 1), grant("b", 50, 1, 20)], {1: 30}, {"a": 100, "b": 20}),
        ([grant("a", 100, 1, 20), grant("b", 50, 1, 10)], {1: 70}, {"a": 80, "b": 0}),
        # What was spent before a credit came was not its money.
        ([grant("a", 100, 1), grant("b", 50, 5, 20)], {1: 60, 5: 0}, {"a": 40, "b": 50}),
        ([grant("a", 100, 1), grant("b", 50, 5, 20)], {1: 60, 5: 10}, {"a": 40, "b": 40}),
        # Nor is what is spent after it ended.
        ([grant("a", 100, 1), grant("b", 50, 1, 5)], {1: 10, 5: 60}, {"a": 40, "b": 40}),
        # Two that end at once: the older one first.
        ([grant("a", 10, 2, 9), grant("b", 10, 1, 9)], {1: 4, 2: 9}, {"a": 7, "b": 0}),
        # A correction may leave a debt, which the next credit pays.
        ([grant("a", 10, 1, 5), grant("b", 50, 6, 20)], {1: 25, 5: 0, 6: 0}, {"a": 0, "b": 35}),
    ],
)
def test_money_goes_to_the_credit_that_expires_first(grants, spent, remaining):
    spans = [(day(number), nano) for number, nano in spent.items()]
    assert left(grants, spans) == remaining


def test_spans_begin_where_credits_come_or_end():
    grants = [grant("a", 1, 1), grant("b", 1, 3, 9), grant("c", 1, 3, 20)]
    assert boundaries(grants, day(10)) == [day(1), day(3), day(9)]


class House:
    """A prepaid organisation and the limiter in front of it; its rules are read when told."""

    def __init__(self, database, clock) -> None:
        self.database, self.now = database, clock
        self.ledger = 0
        self.limiter = RateLimiter(MemoryStore(), rules=self.rules, now=clock,
                                   spending=self.spending)  # fmt: skip
        self.expiry = CreditExpiry(database, self.limiter, self.rules, clock)
        self.book = None

    async def spending(self, rule, now, without=()):
        return self.ledger

    def rules(self):
        return self.book

    async def open(self) -> "House":
        async with self.database.unit_of_work() as session:
            project = await IdentityService(session, self.now()).create_project("acme")
            project.organisation.billing = "prepaid"
        self.who = Principal(organisation=project.organisation_id, project=project.id,
                             project_name="acme", key="key_1", tenant="t")  # fmt: skip
        await self.read()
        return self

    async def grant(self, nano: int, until: datetime | None = None) -> str:
        async with self.database.unit_of_work() as session:
            service = LimitService(session, self.who.organisation, self.now())
            row = service.grant(nano, expires_at=until)
        await self.read()
        return row.id

    async def read(self) -> None:
        async with self.database.reading() as session:
            self.book = await rule_book(session, {}, frozenset([self.who.organisation]), self.now())

    async def lapse(self) -> int:
        done = await self.expiry.lapse()
        await self.read()
        return done

    async def lapsed(self) -> dict[str, int | None]:
        async with self.database.reading() as session:
            rows = await LimitRepository(session, self.who.organisation).credits()
        return {row.id: row.lapsed_nano for row in rows}

    async def spend(self, nano: int, request: str = "req_1") -> None:
        lease = await self.limiter.reserve(self.who, request, 1, demand=demand(block=5))
        await self.limiter.settle(lease, 1, nano)


@pytest.fixture
async def house(database):
    return await House(database, Now("2026-12-01T00:00:00+00:00")).open()


async def test_what_was_not_used_when_a_credit_ends_cannot_be_spent(house):
    first = await house.grant(100, day(10))
    second = await house.grant(40)
    await house.spend(30)
    house.now.at = day(10)
    with pytest.raises(QuotaBackendUnavailable) as refusal:
        await house.spend(1)
    assert refusal.value.retry_after == 1.0
    assert await house.lapse() == 1
    assert await house.lapsed() == {first: 70, second: None}
    await house.spend(39)  # of the second, which had not been touched
    with pytest.raises(BudgetExhausted) as gone:
        await house.spend(1)
    assert gone.value.detail_code == "credit_balance_exhausted"
    assert await house.lapse() == 0


async def test_a_stream_that_runs_when_its_credit_ends_keeps_what_it_holds_and_gets_no_more(house):
    await house.grant(100, day(10))
    house.now.at = day(10) - timedelta(seconds=1)
    lease = await house.limiter.reserve(house.who, "req_1", 1, demand=demand())
    house.now.at = day(10) + timedelta(seconds=1)
    denied = await house.limiter.extend(lease, held=50, want=20, least=1)
    assert (denied.nano, denied.code) == (0, "credit_balance_exhausted")
    await house.lapse()
    [lapsed] = (await house.lapsed()).values()
    assert lapsed == 50
    assert (await house.limiter.extend(lease, held=50, want=20, least=1)).nano == 0
    await house.limiter.settle(lease, 1, 44)
    fresh = await house.grant(30)  # what comes later goes on from there
    assert fresh
    lease = await house.limiter.reserve(house.who, "req_2", 1, demand=demand())
    assert lease.money == 36  # and the 6 that the stream did not need


async def test_a_stream_that_outlives_a_credit_goes_on_with_the_next(house):
    await house.grant(60, day(10))
    await house.grant(40)
    lease = await house.limiter.reserve(house.who, "req_1", 1, demand=demand())
    house.now.at = day(10)
    await house.lapse()
    assert (await house.limiter.extend(lease, held=50, want=99, least=1)).nano == 40
    assert (await house.limiter.extend(lease, held=90, want=9, least=1)).nano == 0


async def test_a_clock_that_steps_back_revives_nothing(house):
    await house.grant(100, day(10))
    house.now.at = day(10)
    await house.lapse()
    house.now.at = day(9)
    await house.read()
    with pytest.raises(BudgetExhausted):
        await house.spend(1)
    assert await house.lapse() == 0


async def test_two_gateways_take_an_expired_credit_off_once_and_say_so_in_the_audit_log(house):
    await house.grant(100, day(10))
    await house.grant(50, day(10))
    house.now.at = day(11)
    other = CreditExpiry(house.database, house.limiter, house.rules, house.now)
    await house.lapse()
    assert await other.lapse() == 0
    async with house.database.reading() as session:
        events = await AuditRepository(session, house.who.organisation).newest_first()
    assert [(event.type, event.change) for event in events] == [
        ("credit.expired", {"lapsed": 50}),
        ("credit.expired", {"lapsed": 100}),
    ]


async def test_a_gateway_takes_expired_credits_off_by_itself(house):
    credit = await house.grant(100, day(10))
    house.now.at = day(10)
    task = asyncio.create_task(house.expiry.run())
    async with asyncio.timeout(20):
        while (await house.lapsed())[credit] is None:
            await asyncio.sleep(0.02)
    task.cancel()


def test_an_operator_grants_credit_that_is_listed_and_audited(database_url, tmp_path, capsys):
    shell = Shell(tmp_path, database_url, capsys)
    shell.ok("tenant", "create", "acme")
    given = shell.ok("credit", "grant", "12.000000001", "--expires", "30d", "--note", "receipt 7")
    assert (given["amount_usd"], given["lapsed_usd"]) == ("12.000000001", None)
    assert [row["id"] for row in shell.ok("credit", "list")] == [given["id"]]
    for wrong in ("0", "0.0000000001", "1e3", "NaN", ""):
        code, _, said = shell.run("credit", "grant", wrong)
        assert (code, "amount" in said) == (1, True)
