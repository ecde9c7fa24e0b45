"""Checks the books from inside: ledger, roll-ups, closed months, engines and budget counters.

What was found last is kept, for whoever looks next. One check runs at a time; the same proof is
``loratorio reconcile``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.protocol import Counts
from engine.stream import EngineLost
from gateway.counters import SETTLED_S, CounterCheck
from gateway.db import Database
from gateway.fleet.fleet import Fleet
from gateway.limits.limiter import RateLimiter
from gateway.snapshot import rules_now
from gateway.usage.reconcile import Findings, Reconciliation, merged

RECORDED_PAGE = 5000  # requests asked of an engine at once


@dataclass(frozen=True, slots=True)
class Checked:
    at: datetime
    took_s: float
    findings: Findings
    silent: tuple[str, ...]  # engines that did not answer, and are not in it

    @property
    def is_clean(self) -> bool:
        return not self.findings.differences


class Books:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        fleet: Fleet,
        limiter: RateLimiter,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        settled_s: float = SETTLED_S,
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._limiter = limiter
        self._now = now
        self._settled_s = settled_s
        self._turn = asyncio.Lock()
        self.last: Checked | None = None

    async def check(self) -> Checked:
        """Whoever asks while one runs gets that one's answer. Raises DatabaseUnavailable."""
        asked = self._now()
        async with self._turn:
            if self.last is not None and self.last.at >= asked:
                return self.last
            begun = self._now()
            recorded, silent = await self._recorded()
            proof = Reconciliation(self._database, now=begun.timestamp())
            findings = await proof.run(merged(recorded) if recorded is not None else None)
            async with self._database.reading() as session:
                rules = await rules_now(session)
            counters = CounterCheck(
                self._database, self._limiter.purses, begun, rules=rules, wait_s=self._settled_s
            )
            await counters.add_to(findings)
            took = (self._now() - begun).total_seconds()
            self.last = Checked(begun, took, findings, silent)
            return self.last

    async def _recorded(self) -> tuple[list[list[Counts]] | None, tuple[str, ...]]:
        """What every engine keeps; None where one of them does not say, for then what is billed
        could not be found with it."""
        pages: list[list[Counts]] = []
        silent = []
        for member in self._fleet.members:
            try:
                if (client := member.client) is None:
                    raise EngineLost("not connected")
                start = 0
                while page := await client.recorded(start, RECORDED_PAGE):
                    pages.append(page)
                    start += len(page)
            except (EngineLost, TimeoutError):
                silent.append(member.name)
        return (None if silent or not self._fleet.members else pages), tuple(silent)
