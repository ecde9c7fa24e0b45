"""Prepaid credits end: what of one was not used when it expired is taken off, once and for good.

From the moment at which a credit expires its organisation is admitted nothing, until a gateway has
worked out what was left of it: from the ledger, and from what is reserved by requests that run.
That is written down, so a clock that steps back revives nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from redis.exceptions import RedisError

from gateway.audit.service import Actor, AuditLog
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict, QuotaBackendUnavailable
from gateway.limits.credits import Grant, boundaries, left
from gateway.limits.limiter import RateLimiter
from gateway.limits.models import Credit, Level
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import RuleBook, Subject
from gateway.usage.report import UsageReport, Window

log = logging.getLogger(__name__)

LOOK_S = 0.25
GATEWAY = Actor("operator", "credit expiry")  # nobody in person


class CreditExpiry:
    """Belongs to one event loop. Any number of gateways may run it."""

    def __init__(
        self,
        database: Database,
        limiter: RateLimiter,
        rules: Callable[[], RuleBook],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._limiter = limiter
        self._rules = rules
        self._now = now

    async def run(self) -> None:
        """For ever; what cannot be worked out now is tried again."""
        while True:
            await asyncio.sleep(LOOK_S)
            if any(self._is_due(subject) for subject in self._rules().allowances):
                try:
                    await self.lapse()
                except (DatabaseUnavailable, Conflict, QuotaBackendUnavailable,
                        RedisError, OSError) as error:  # fmt: skip
                    log.warning("expired credits are not worked out yet: %s", error)
                    await asyncio.sleep(1)

    async def lapse(self) -> int:
        """Work out every credit that has expired. Returns how many."""
        now = self._now()
        async with self._database.reading() as session:
            due = await LimitRepository(session).expired_credits(now)
        done = 0
        for organisation in sorted({credit.organisation_id for credit in due}):
            done += await self._lapse_of(organisation, now)
        return done

    def _is_due(self, subject: Subject) -> bool:
        if subject.level is not Level.ORGANISATION:
            return False
        credit = self._rules().credit_of(subject.id)
        return credit is not None and any(each.at <= self._now() for each in credit.expiring)

    async def _lapse_of(self, organisation: str, now: datetime) -> int:
        async with self._database.reading() as session:
            rows = await LimitRepository(session, organisation).credits()
            grants = [_grant(row) for row in rows]
            starts = boundaries(grants, now)
            report, spans = UsageReport(session, organisation), []
            for start, end in pairwise(starts):
                spans.append((start, (await report.total(Window(start, end))).cost.total))
        due = [row for row in rows if row.lapsed_nano is None and row.expires_at in starts]
        await self._add_what_runs(organisation, due, spans)
        unused = left(grants, spans)
        async with self._database.publish() as session:
            done = 0
            for row in due:
                if await LimitRepository(session).lapse(row.id, unused[row.id]):
                    done += 1
                    await AuditLog(session, organisation, now).add(
                        "credit.expired", row.id, actor=GATEWAY, change={"lapsed": unused[row.id]}
                    )
        return done

    async def _add_what_runs(
        self, organisation: str, due: Sequence[Credit], spans: list[tuple[datetime, int]]
    ) -> None:
        """What is reserved, or not in the ledger yet, was begun before the first of them expired:
        nothing has been admitted since."""
        rule = self._rules().credit_rule(organisation)
        if rule is None or not due:
            return
        levels = await self._limiter.levels([rule])
        running = levels.levels[0] + levels.held[0] - sum(spent for _, spent in spans)
        first = min(row.expires_at for row in due if row.expires_at is not None)
        place = max(i for i, (start, _) in enumerate(spans) if start < first)
        spans[place] = spans[place][0], spans[place][1] + max(0, running)


def _grant(row: Credit) -> Grant:
    return Grant(row.id, row.amount_nano, row.granted_at, row.expires_at, row.lapsed_nano)
