"""Shows on the metrics page what an operator is to be woken for: books that differ, budgets that
run out.

What is looked at is what moves: the roll-ups of the last hours against their events. ``loratorio
reconcile`` looks at everything there is. Budgets are the live counters, against what they may come
to.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict, QuotaBackendUnavailable
from gateway.limits.limiter import RateLimiter
from gateway.limits.models import Level
from gateway.limits.rules import RuleBook, rule_of
from gateway.limits.store import Purse
from gateway.metrics import BudgetShown, Metrics
from gateway.usage.drift import recent_drift

log = logging.getLogger(__name__)

LOOK_S = 60.0
DRIFT_S = 300.0
SHOWN_LEVELS = frozenset({Level.ORGANISATION, Level.PROJECT, Level.KEY})
MOST_BUDGETS = 500  # the fullest ones
SPAN = timedelta(hours=6)


class BooksWatch:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        limiter: RateLimiter,
        rules: Callable[[], RuleBook],
        metrics: Metrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database, self._limiter, self._rules = database, limiter, rules
        self._metrics, self._now = metrics, now

    async def run(self) -> None:
        """For ever; while a store is away the page shows what it showed before."""
        drift_at = 0.0
        while True:
            try:
                await self.look_at_budgets()
                if time.monotonic() >= drift_at:
                    drift_at = time.monotonic() + DRIFT_S
                    await self.look_at_books()
            except (DatabaseUnavailable, Conflict, QuotaBackendUnavailable) as error:
                log.info("the books are not looked at for now: %s", error)
            await asyncio.sleep(LOOK_S)

    async def look_at_books(self) -> None:
        now = self._now()
        async with self._database.reading() as session:
            differences = await recent_drift(session, now - SPAN)
        self._metrics.show_drift(len(differences), now.timestamp())
        for each in differences[:3]:
            log.error("the books differ: %s", each)

    async def look_at_budgets(self) -> None:
        found = sorted(
            _shown(await self._limiter.purses(), self._rules(), self._now()),
            key=lambda budget: -budget.spent / max(budget.limit, 1),
        )
        self._metrics.show_budgets(found[:MOST_BUDGETS])


def _shown(purses: Iterable[Purse], book: RuleBook, now: datetime) -> Iterator[BudgetShown]:
    """Of the periods that are running."""
    for purse in purses:
        rule, period_id = rule_of(purse.key)
        subject = rule.subject
        if purse.spent is None or subject.level not in SHOWN_LEVELS:
            continue
        for allowance in book.allowances.get(subject, ()):
            if allowance.period is None or allowance.period != rule.period:
                continue
            running = rule.period_at(now)
            if running is not None and running.id == period_id:
                yield BudgetShown(
                    level=subject.level.value,
                    subject=subject.id,
                    model=subject.model,
                    period=allowance.period,
                    spent=purse.spent + purse.held,
                    limit=allowance.nano,
                )
