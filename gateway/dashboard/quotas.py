"""``/dashboard/quotas``: every limit of an organisation as it is this moment.

Headroom per level, what is reserved by open requests, when a limit is whole again, and who is
refused by which. Counters are those that admission itself asks; open requests are those of this
gateway, refusals those of all, as the request log has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.dashboard import numbers
from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.names import Names
from gateway.dashboard.page import TENANTS, Page
from gateway.dashboard.visit import Visit
from gateway.errors import QuotaBackendUnavailable
from gateway.limits.bucket import UNIT
from gateway.limits.lease import Lease
from gateway.limits.models import Level
from gateway.limits.rules import Rule
from gateway.limits.store import Kind
from gateway.refusals.repository import RefusalRepository

MOST_GAUGES = 300
MOST_OPEN = MOST_REFUSED = 50
LATELY = timedelta(minutes=15)
TIGHT, FULL = 0.8, 1.0
LEVELS = {
    Level.ORGANISATION: "Organisation", Level.PLAN: "Plan", Level.PROJECT: "Project",
    Level.KEY: "Key", Level.CUSTOMER: "Customer", Level.TAG: "Tag",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One limit. ``used`` and ``held`` are of the limit's unit; money is in nano-dollars."""

    rule: Rule
    name: str
    limit: int
    used: int
    held: int  # of money, by open requests
    whole_in_s: float | None  # until all of it is free again; None: nobody knows
    open: int = 0  # requests that hold money of it

    @property
    def taken(self) -> int:
        return self.used + self.held

    @property
    def left(self) -> int:
        return max(0, self.limit - self.taken)

    @property
    def share(self) -> float:
        return self.taken / self.limit if self.limit else FULL

    @property
    def tone(self) -> str:
        return "bad" if self.share >= FULL else "warn" if self.share >= TIGHT else ""

    def text(self, value: int) -> str:
        return numbers.usd(value) if self.rule.kind is Kind.MONEY else numbers.count(value)


async def quotas(visit: Visit) -> dict[str, Any]:
    limiter = visit.sources.limiter
    rules = visit.sources.snapshot.limits_of(visit.organisation)
    names = await names_of(visit)
    unavailable = ""
    try:
        gauges = await _gauges(visit, rules[:MOST_GAUGES], names)
    except QuotaBackendUnavailable as error:
        gauges, unavailable = [], error.message
    refused = await RefusalRepository(visit.session, visit.organisation).throttled(
        visit.now - LATELY
    )
    running = limiter.open_of(visit.organisation)
    return {
        "levels": [
            (title, [each for each in gauges if each.rule.subject.level is level])
            for level, title in LEVELS.items()
        ],
        "gauges": gauges,
        "left_out": max(0, len(rules) - MOST_GAUGES),
        "unavailable": unavailable,
        "degraded": limiter.degraded,
        "refused": refused[:MOST_REFUSED],
        "refused_times": sum(each.times for each in refused),
        "refused_left_out": max(0, len(refused) - MOST_REFUSED),
        "running": sorted(running, key=_since)[:MOST_OPEN],
        "running_count": len(running),
        "held": sum(limiter.held_by(lease) for lease in running),
        "holds": {lease.request: limiter.held_by(lease) for lease in running},
        "names": names,
        "of": lambda subject: subject_named(subject, names),
    }  # fmt: skip


def _since(lease: Lease) -> float:
    return lease.at.timestamp() if lease.at else 0.0


async def _gauges(visit: Visit, rules: list[Rule], names: Mapping[str, str]) -> list[Gauge]:
    """Raises QuotaBackendUnavailable."""
    if not rules:
        return []
    limiter = visit.sources.limiter
    verdict = await limiter.levels(rules)
    gauges = []
    for rule, level, held in zip(rules, verdict.levels, verdict.held, strict=True):
        money = rule.kind is Kind.MONEY
        gauges.append(
            Gauge(
                rule=rule,
                name=named(rule, names),
                limit=rule.ask(0, visit.now).limit,
                used=-(-level // UNIT) if rule.kind is Kind.RATE else level,
                held=held if money else 0,
                whole_in_s=_whole_in(rule, level, visit.now),
                open=len(await limiter.reservations(rule)) if money and held else 0,
            )
        )
    return gauges


def _whole_in(rule: Rule, level: int, now: datetime) -> float | None:
    if rule.kind is Kind.RATE:
        return level / rule.limit / 1000 if rule.limit else None
    period = rule.period_at(now)
    return (period.end - now).total_seconds() if period else None


async def names_of(visit: Visit) -> dict[str, str]:
    owners = await Names.of(visit)
    keys = await NameRepository(visit.session, visit.organisation).keys()
    return {**owners.projects, **keys, visit.organisation: visit.organisation_name}


def named(rule: Rule, names: Mapping[str, str]) -> str:
    subject, name = rule.subject, subject_named(rule.subject.id, names)
    return f"{name} on {subject.model}" if subject.model else name


def subject_named(subject: str, names: Mapping[str, str]) -> str:
    """Customers and tags are named within their project."""
    owner, slash, rest = subject.partition("/")
    return names.get(owner, owner) + (f" / {rest}" if slash else "")


QUOTAS = Page(
    path="/quotas",
    title="Quotas, live",
    section="Limits",
    icon="gauge",
    template="quotas.html",
    show=quotas,
    audiences=TENANTS,
    of_one=True,
)
