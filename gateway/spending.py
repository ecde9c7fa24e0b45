"""Where the ledger and the limits meet: what was spent of a budget, and what the dead left held.

The usage log of this gateway is settled before the ledger is asked, so that nothing it knows is
missing. While a request of an earlier run is not accounted for, no sum that could lack it is said.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.catalog.repository import CatalogRepository
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict, QuotaBackendUnavailable
from gateway.identity.principal import Principal
from gateway.limits.limiter import RateLimiter
from gateway.limits.models import Level
from gateway.limits.rules import Rule, Use
from gateway.usage.event import Event, time_of
from gateway.usage.models import UsageEvent
from gateway.usage.record import Started
from gateway.usage.report import Group, Only, UsageReport, Window
from gateway.usage.repository import LedgerRepository

RETRY_S = 1.0
MODEL: tuple[Group, ...] = ("model", "adapter_id")
AHEAD = timedelta(minutes=5)  # clocks of gateways may differ by this


class Settling(Protocol):
    """This gateway's own log on its way into the ledger."""

    @property
    def orphans(self) -> Sequence[Started]: ...

    async def settle(self) -> int: ...


class LedgerSpending:
    """A ``gateway.limits.seeding.Spending``."""

    def __init__(self, database: Database, ledger: Settling) -> None:
        self._database = database
        self._ledger = ledger

    async def __call__(self, rule: Rule, now: datetime, without: Sequence[str] = ()) -> int:
        """Nano-dollars in the rule's period. Raises QuotaBackendUnavailable."""
        window = window_of(rule, now)
        try:
            await self._ledger.settle()
            if any(_pays(rule, window, orphan) for orphan in self._ledger.orphans):
                raise QuotaBackendUnavailable(
                    "What ran when this server was stopped is being accounted for.",
                    retry_after=RETRY_S,
                )
            async with self._database.reading() as session:
                return await spent_of(session, rule, window, without)
        except (DatabaseUnavailable, Conflict) as error:
            raise QuotaBackendUnavailable(
                "Budgets cannot be checked at the moment.", retry_after=RETRY_S
            ) from error

    async def costs(self, requests: Sequence[str]) -> Mapping[str, int]:
        """Of those that are in the ledger. Raises QuotaBackendUnavailable."""
        try:
            async with self._database.reading() as session:
                events = await LedgerRepository(session).charged(requests)
        except DatabaseUnavailable as error:
            raise QuotaBackendUnavailable("The ledger cannot be read at the moment.") from error
        return {event.id: event.cost_nano or 0 for event in events}


async def spent_of(
    session: AsyncSession, rule: Rule, window: Window, without: Sequence[str] = ()
) -> int:
    """Nano-dollars of a budget, at one instant of the ledger, these requests left out."""
    report = UsageReport(session, rule.organisation)
    by: tuple[Group, ...] = MODEL if rule.subject.model else ()
    lines = await report.lines(window, by, only=only_of(rule))
    own = await LedgerRepository(session).charged(without)
    models = await Models.of(session, rule.subject.model, [line.group for line in lines], own)
    total = sum(line.usage.cost.total for line in lines if models.mean(*line.group))
    return total - sum(
        event.cost_nano or 0
        for event in own
        if _charges(rule, window, event) and models.mean(event.model, event.adapter_id)
    )


@dataclass(frozen=True, slots=True)
class Models:
    """Which of the ledger's models a limit is for: it names an adapter, and the ledger what a
    client wrote, which may be an alias of it."""

    wanted: str  # "": all
    names: Mapping[str, str]  # adapters' ids -> names

    @classmethod
    async def of(
        cls,
        session: AsyncSession,
        wanted: str,
        groups: Iterable[Sequence[str]] = (),
        events: Iterable[UsageEvent] = (),
    ) -> "Models":
        """``groups``: of lines by ``MODEL``."""
        if not wanted:
            return cls("", {})
        ids = {group[1] for group in groups} | {event.adapter_id or "" for event in events}
        return cls(wanted, await CatalogRepository(session).names(ids - {""}))

    def mean(self, model: str = "", adapter_id: str | None = None) -> bool:
        if not self.wanted:
            return True
        return self.names.get(adapter_id or "", model.partition("@")[0]) == self.wanted


async def settle_orphans(limiter: RateLimiter, database: Database, events: Sequence[Event]) -> None:
    """What an earlier run of this gateway had reserved for these goes back."""
    names: Mapping[str, str] = {}
    with contextlib.suppress(DatabaseUnavailable):  # then an alias stands for itself
        async with database.reading() as session:
            ids = {event.adapter_id for event in events if event.adapter_id}
            names = await CatalogRepository(session).names(ids)
    for event in events:
        principal = Principal(
            organisation=event.organisation_id,
            project=event.project_id,
            project_name="",
            key=event.key_id,
            tenant="",
        )
        await limiter.settle_orphan(
            principal,
            event.id,
            Use(names.get(event.adapter_id or "", event.model.partition("@")[0]), event.user_id),
            event.started_at,
            used=event.prompt_tokens - event.cached_tokens + event.completion_tokens,
            nano=event.cost_nano or 0,
        )


def window_of(rule: Rule, now: datetime) -> Window:
    period = rule.period_at(now)
    start = period.start if period else rule.since or now
    end = max(now, start) + AHEAD
    return Window(start, min(period.end, end) if period else end)


def _pays(rule: Rule, window: Window, request: Started) -> bool:
    """Whether a request is paid for from this budget; one of any adapter may be."""
    return (
        request.organisation == rule.organisation
        and window.start <= time_of(request.at_ns) < window.end
        and (request.adapter_id is not None or rule.subject.model in ("", request.model))
        and _is_of(rule, request.project, request.key, request.user)
    )


def _charges(rule: Rule, window: Window, event: UsageEvent) -> bool:
    return (
        event.organisation_id == rule.organisation
        and window.start <= event.started_at < window.end
        and _is_of(rule, event.project_id, event.key_id, event.user_id)
    )


def _is_of(rule: Rule, project: str, key: str, user: str) -> bool:
    subject = rule.subject
    match subject.level:
        case Level.PROJECT:
            return subject.id == project
        case Level.KEY:
            return key in (rule.keys or (subject.id,))
        case Level.CUSTOMER:
            return subject.id == f"{project}/{user}"
    return True


def only_of(rule: Rule) -> Only:
    match rule.subject.level:
        case Level.PROJECT:
            return Only(project_id=(rule.subject.id,))
        case Level.KEY:
            return Only(key_id=rule.keys or (rule.subject.id,))
        case Level.CUSTOMER:
            project, _, customer = rule.subject.id.partition("/")
            return Only(project_id=(project,), user_id=(customer,))
    return Only()
