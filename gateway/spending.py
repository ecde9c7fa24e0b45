"""What the ledger says was spent of a budget: where counters of money begin.

The usage log of this gateway is settled first, so that nothing it knows is missing.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import QuotaBackendUnavailable
from gateway.limits.models import Level
from gateway.limits.rules import Rule
from gateway.usage.report import Only, UsageReport, Window

RETRY_S = 1.0
AHEAD = timedelta(minutes=5)  # clocks of gateways may differ by this


class LedgerSpending:
    """Called as a ``gateway.limits.limiter.Spending``."""

    def __init__(self, database: Database, settle: Callable[[], Awaitable[int]]) -> None:
        self._database = database
        self._settle = settle

    async def __call__(self, rule: Rule, now: datetime) -> int:
        """Nano-dollars in the rule's present period. Raises QuotaBackendUnavailable."""
        period = rule.period_at(now)
        start = period.start if period else rule.since or now
        window = Window(start, max(now + AHEAD, start + AHEAD))
        try:
            await self._settle()
            async with self._database.reading() as session:
                report = UsageReport(session, rule.organisation)
                lines = await report.lines(window, ("model",), only=_only(rule))
        except DatabaseUnavailable as error:
            raise QuotaBackendUnavailable(
                "Budgets cannot be checked at the moment.", retry_after=RETRY_S
            ) from error
        wanted = rule.subject.model
        return sum(
            line.usage.cost.total
            for line in lines
            if not wanted or line.group[0].partition("@")[0] == wanted
        )


def _only(rule: Rule) -> Only:
    match rule.subject.level:
        case Level.PROJECT:
            return Only(project_id=(rule.subject.id,))
        case Level.KEY:
            return Only(key_id=(rule.subject.id,))
        case Level.CUSTOMER:
            project, _, customer = rule.subject.id.partition("/")
            return Only(project_id=(project,), user_id=(customer,))
    return Only()
