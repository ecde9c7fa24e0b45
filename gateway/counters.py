"""Holds the live counters of budgets against the ledger they are derived from.

Requests go on meanwhile, so the ledger is asked before the counters are read and again when all
that they had settled must have reached it: a counter is right if it lies between. Where nothing
runs both are the same number. What is reserved must be the sum of the open reservations. A
request may be on its way from the one to the other, so what differs is looked at again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database
from gateway.identity.repository import IdentityRepository
from gateway.limits.models import Level
from gateway.limits.period import period_of
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Rule, RuleBook, rule_of
from gateway.limits.store import Purse
from gateway.spending import spent_of, window_of
from gateway.usage.reconcile import Findings
from gateway.usage.report import Window

SETTLED_S = 2.0  # by then what a counter was charged is in the ledger: four times what it takes
TRIES = 3
OF = "nano-dollars of "
Reading = Callable[[], Awaitable[Sequence[Purse]]]


class CounterCheck:
    """``read``: every counter there is, by Redis or by a gateway without one."""

    def __init__(
        self,
        database: Database,
        read: Reading,
        now: datetime,
        *,
        rules: RuleBook | None = None,
        wait_s: float = SETTLED_S,
    ) -> None:
        """``rules``: what holds; None: a budget for every counter."""
        self._rules = rules
        self._database = database
        self._read = read
        self._now = now
        self._wait_s = wait_s

    async def add_to(self, findings: Findings) -> None:
        suspects: set[str] | None = None
        for _ in range(TRIES):
            found = Findings()
            purses = await self._look(found, suspects)
            if suspects is None:
                findings.compared["budget counters"] = len(purses)
                findings.compared["open reservations"] = sum(len(p.open) for p in purses)
            suspects = {each.place.removeprefix(OF) for each in found.differences}
            if not suspects:
                return
        findings.differences += found.differences

    async def _look(self, findings: Findings, only: set[str] | None) -> list[Purse]:
        known = {
            p.key
            for p in await self._read()
            if (only is None or p.key in only)
            and (self._rules is None or self._rules.holds(p.key, p.version))
        }
        floors = await self._sums(dict.fromkeys(known, ()))
        purses = [purse for purse in await self._read() if purse.key in known]
        await asyncio.sleep(self._wait_s)
        running = {p.key: tuple(each.lease.rpartition(":")[2] for each in p.open) for p in purses}
        ceilings = await self._sums(running)
        for purse in purses:
            self._compare(purse, floors[purse.key], ceilings[purse.key], findings)
        return purses

    def _compare(self, purse: Purse, floor: int, ceiling: int, findings: Findings) -> None:
        held = sum(each.nano for each in purse.open)
        findings.differ("reserved", f"{OF}{purse.key}", held, purse.held)
        if purse.spent is None or min(floor, ceiling) <= purse.spent <= max(floor, ceiling):
            return
        nearest = min((floor, ceiling), key=lambda bound: abs(bound - (purse.spent or 0)))
        findings.differ("counter", f"{OF}{purse.key}", nearest, purse.spent)

    async def _sums(self, without: Mapping[str, Sequence[str]]) -> dict[str, int]:
        async with self._database.reading() as session:
            replaced = await IdentityRepository(session).replaced()
            book, sums = RuleBook(replaced=replaced), {}
            for key, requests in without.items():
                rule, period_id = rule_of(key)
                if rule.subject.level is Level.KEY:
                    rule = replace(rule, keys=book.line(rule.subject.id))
                if period_id:
                    period = period_of(period_id, rule.time_zone)
                    window = Window(period.start, period.end)
                else:
                    window = await self._since_the_first_credit(session, rule)
                sums[key] = await spent_of(session, rule, window, requests)
        return sums

    async def _since_the_first_credit(self, session: AsyncSession, rule: Rule) -> Window:
        credits = await LimitRepository(session, rule.organisation).credits()
        since = min((row.granted_at for row in credits), default=self._now)
        return window_of(replace(rule, since=since), self._now)
