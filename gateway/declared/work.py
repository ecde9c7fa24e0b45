"""The file's declarations, brought about in the caller's transaction, with each change noted.

The same code plans and applies: a plan is work in a transaction that is not kept. Everything is
audited with its change; an event of plans and of prices of base models, which are nobody's, is in
the operator's own log, that of the organisation "".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.service import Actor, AuditLog
from gateway.declared.change import Change, Mark
from gateway.declared.declaration import NANO_PER_DOLLAR, Limits
from gateway.identity.pepper import Peppers
from gateway.limits.models import RATES
from gateway.limits.period import DAY, MONTH
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Subject
from gateway.limits.service import LimitService

OPERATOR = Actor("operator", "apply")


class Work:
    """Of one application of one file."""

    def __init__(
        self, session: AsyncSession, now: datetime, peppers: Peppers, *, prune: bool
    ) -> None:
        self.session, self.now, self.peppers, self.prune = session, now, peppers, prune
        self.changes: list[Change] = []

    def changed(
        self, mark: Mark, path: str, before: object = "", after: object = "",
        secret: str | None = None,
    ) -> None:  # fmt: skip
        self.changes.append(Change(mark, path, str(before), str(after), secret))

    def differs(self, path: str, before: object, after: object) -> bool:
        """Notes it where they do."""
        if before != after:
            self.changed(Mark.CHANGED, path, shown(before), shown(after))
        return before != after

    async def note(
        self, organisation: str, kind: str, object_id: str, project: str | None = None,
        **change: Any,
    ) -> None:  # fmt: skip
        await self.session.flush()
        log = AuditLog(self.session, organisation, self.now)
        await log.add(kind, object_id, actor=OPERATOR, project=project, change=change)

    async def limit(
        self, path: str, organisation: str | None, subject: Subject, limits: Limits,
        project: str | None = None,
    ) -> None:  # fmt: skip
        """What the file says of a subject's rates and budgets, and of those for single models."""
        if await self._own_limits(path, organisation, subject, limits):
            kind = f"{subject.level}.limits.updated"
            name = f"{subject.id} {subject.model}".strip()
            await self.note(organisation or "", kind, name, project)
        for model, narrower in limits.models.items():
            narrowed = Subject(subject.level, subject.id, model)
            await self.limit(f"{path}.models.{model}", organisation, narrowed, narrower, project)

    async def _own_limits(
        self, path: str, organisation: str | None, subject: Subject, limits: Limits
    ) -> bool:
        service = LimitService(self.session, organisation, self.now)
        known = len(self.changes)
        if limits.rates is not None:
            before = await service.rates(subject)
            for name in RATES:
                self.differs(
                    f"{path}.rates.{name}", getattr(before, name), getattr(limits.rates, name)
                )
            if before != limits.rates:
                await service.set_rates(subject, limits.rates)
        if limits.budgets is not None:
            wanted = {budget.period: budget for budget in limits.budgets}
            rows = LimitRepository(self.session, organisation)
            for period in (DAY, MONTH):
                row, budget = await rows.budget(subject, period), wanted.get(period)
                before_text = row and _money(row.amount_nano, row.time_zone, row.on_exhaust)
                after_text = budget and _money(budget.nano, budget.time_zone, budget.on_exhaust)
                if not self.differs(f"{path}.budgets.{period}", before_text, after_text):
                    continue
                if budget is None:
                    await service.remove_budget(subject, period)
                else:
                    await service.set_budget(
                        subject, period, budget.nano,
                        time_zone=budget.time_zone, on_exhaust=budget.on_exhaust,
                    )  # fmt: skip
        return len(self.changes) > known


def shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "nothing"
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return str(value)


def _money(nano: int, time_zone: str, on_exhaust: str) -> str:
    whole, rest = divmod(nano, NANO_PER_DOLLAR)
    cents = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"${whole}.{cents} ({time_zone}, {on_exhaust})"
