"""A budget that did not hold for a while: what was spent meanwhile counts all the same."""

import asyncio

import pytest

from gateway.counters import CounterCheck
from gateway.limits.limiter import RateLimiter
from gateway.limits.memory import MemoryStore
from gateway.limits.models import Level
from gateway.limits.rules import RuleBook, Subject, rule_of
from gateway.limits.service import LimitService
from gateway.snapshot import rules_now
from gateway.spending import LedgerSpending
from gateway.usage.reconcile import Findings
from tests.gateway.test_counters import EACH, desk_of
from tests.gateway.test_ledger import NOON


@pytest.mark.parametrize("how", ["removed", "moved to another zone and back"])
async def test_a_budget_that_comes_to_hold_again_counts_what_was_spent_meanwhile(
    database, tmp_path, how
):
    """Its counter of before is still there, and misses that."""
    store = MemoryStore()
    desk = await desk_of(database, tmp_path, store, RuleBook())
    subject = Subject(Level.KEY, "key_1")

    async def limited(**terms) -> None:
        async with database.publish() as session:
            limits = LimitService(session, "org_1", NOON)
            if terms:
                await limits.set_budget(subject, "month", 9_000, **terms)
            else:
                await limits.remove_budget(subject, "month")
        await asyncio.sleep(0.002)  # ids tell milliseconds apart
        async with database.reading() as session:
            rules = await rules_now(session)
        desk.limiter = RateLimiter(store, rules=lambda: rules, now=lambda: NOON,
                                   spending=LedgerSpending(database, desk.ledger))  # fmt: skip

    await limited(time_zone="UTC")
    await desk.serve("req_1")
    await limited(**({} if how == "removed" else {"time_zone": "Asia/Tokyo"}))
    await desk.serve("req_2")
    await desk.ledger.settle()
    await limited(time_zone="UTC")
    await desk.serve("req_3")
    spent = {rule_of(p.key)[0].time_zone: p.spent for p in await store.purses()}
    assert spent["UTC"] == 3 * EACH
    await desk.ledger.settle()
    async with database.reading() as session:
        rules = await rules_now(session)
    findings = Findings()
    check = CounterCheck(database, store.purses, NOON, rules=rules, wait_s=0)
    await check.add_to(findings)
    assert findings.compared["budget counters"] == 1
    assert findings.differences == []
    await desk.recorder.close()
