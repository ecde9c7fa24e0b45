"""Counters of money begin with what the ledger says, and with what is running.

The ledger is the truth and a counter is derived from it. What is on its way into the ledger must
count once, so: the requests that the counter knows by their own numbers (open, or settled while
nobody had seeded it) are left out of the ledger's sum, and the store refuses a sum that was read
before one of them came. What a running request reserves is entered first; while that is on its
way no request settles.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from gateway.errors import QuotaBackendUnavailable
from gateway.limits.rules import Rule
from gateway.limits.store import Ask, Open, Store

MOST_TRIES = 50  # others may come to a counter while the ledger is read
LONGEST_WAIT_S = 10.0

# What this gateway's requests reserve of each of these counters.
Holdings = Callable[[Collection[str]], Mapping[str, list[Open]]]


class Spending(Protocol):
    """What the ledger says. Raises QuotaBackendUnavailable while it cannot say all."""

    async def __call__(self, rule: Rule, now: datetime, without: Sequence[str] = ()) -> int:
        """Nano-dollars in the rule's period at ``now``, these requests left out."""
        ...


async def nothing_spent(rule: Rule, now: datetime, without: Sequence[str] = ()) -> int:
    return 0


class Seeder:
    """Belongs to one event loop."""

    def __init__(self, store: Store, spending: Spending, holdings: Holdings) -> None:
        self._store = store
        self._spending = spending
        self._holdings = holdings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._entering = asyncio.Lock()

    async def seed(self, rules: Sequence[Rule], asks: Sequence[Ask], now: datetime) -> None:
        """Many who ask at once read the ledger once. Raises QuotaBackendUnavailable."""
        for rule, ask in zip(rules, asks, strict=True):
            task = self._tasks.get(ask.key)
            if task is None:
                task = asyncio.create_task(self._seed(rule, ask, now))
                self._tasks[ask.key] = task
                task.add_done_callback(partial(self._seeded, ask.key))
            await asyncio.shield(task)

    async def enter(self, asks: Sequence[Ask]) -> None:
        """What running requests reserve of these, should the store have forgotten it."""
        async with self._entering:
            holdings = self._holdings([ask.key for ask in asks])
            for ask in asks:
                await self._store.enter(ask, holdings[ask.key])

    async def entered(self) -> None:
        """Wait for ``enter``: who settles meanwhile could be entered after that."""
        while self._entering.locked():
            async with self._entering:
                pass

    def _seeded(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it; perhaps nobody does any more

    async def _seed(self, rule: Rule, ask: Ask, now: datetime) -> None:
        for _ in range(MOST_TRIES):
            await self.enter([ask])
            known = await self._store.known(ask.key)
            requests = [request_of(lease) for lease in known]
            spent = await self._spending(rule, now, requests)
            wait_ms = await self._store.seed(ask, spent, known=known)
            if wait_ms == 0:
                return
            if wait_ms > 0:
                await asyncio.sleep(min(wait_ms / 1000, LONGEST_WAIT_S))
        raise QuotaBackendUnavailable("Budgets cannot be checked at the moment.", retry_after=1.0)


def request_of(lease: str) -> str:
    """As the ledger calls it: of several attempts at one request it has the one that counted."""
    return lease.rpartition(":")[2].partition("~")[0]
