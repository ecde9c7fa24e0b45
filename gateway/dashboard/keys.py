"""``/dashboard/keys``: a project's keys: what each may do, until when, and what it used."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.dashboard.key_actions import ACTIONS, LIFETIMES, OVERLAPS
from gateway.dashboard.page import Page
from gateway.dashboard.timespan import timespan_of
from gateway.dashboard.visit import Visit
from gateway.identity.models import ApiKey, Project
from gateway.identity.rights import Right
from gateway.usage.report import Usage

SOON = timedelta(days=14)  # before its end a key is marked
KEPT = timedelta(days=30)  # ended keys are shown so long


@dataclass(frozen=True, slots=True)
class Line:
    row: ApiKey
    usage: Usage  # this month
    account: str  # the service account it is of; "" for none
    now: datetime

    @property
    def ended_at(self) -> datetime | None:
        """When it stopped to work; None while it works."""
        ends = [at for at in (self.row.revoked_at, self.row.expires_at) if at and at <= self.now]
        return min(ends) if ends else None

    @property
    def ends_soon(self) -> bool:
        end = self.row.expires_at
        return end is not None and self.now < end <= self.now + SOON

    @property
    def scopes(self) -> Sequence[str]:
        """In words; none for a key that may do all its project may."""
        found = [
            f"{what} {', '.join(only)}"
            for what, only in (
                ("paths", self.row.endpoints),
                ("models", self.row.models),
                ("from", self.row.networks),
            )
            if only is not None
        ]
        return found


async def keys(visit: Visit) -> dict[str, Any]:
    projects = [p for p in await visit.rows.projects() if _may_see(visit, p)]
    chosen = next((p for p in projects if p.id == visit.query.get("project")), None)
    chosen = chosen or (projects[0] if projects else None)
    lines = await _lines(visit, chosen) if chosen else []
    return {
        "projects": {row.id: row.name for row in projects},
        "project": chosen,
        "lines": [line for line in lines if line.ended_at is None],
        "ended": [
            line for line in lines if line.ended_at is not None and line.ended_at > visit.now - KEPT
        ],
        "may": chosen is not None and visit.may(Right.KEYS, chosen.id),
        "made": "",  # until one is
        "lifetimes": LIFETIMES,
        "overlaps": OVERLAPS,
    }


def _may_see(visit: Visit, project: Project) -> bool:
    return visit.may(Right.KEYS_READ, project.id)


async def _lines(visit: Visit, project: Project) -> list[Line]:
    month = timespan_of({"range": "month"}, visit.zone, visit.now)
    report = visit.report(project.id)
    sums = await report.within(month.window, group_by=("key_id",))
    used = {key: usage for (key,), usage in sums.items()}
    accounts = {row.id: row.name for row in await visit.rows.accounts(project.id)}
    return [
        Line(row, used.get(row.id, Usage()), accounts.get(row.service_account_id or "", ""),
             visit.now)
        for row in await visit.rows.keys(project.id, revoked_after=visit.now - KEPT)
    ]  # fmt: skip


KEYS = Page(
    path="/keys",
    title="Keys",
    section="Access",
    icon="key",
    template="keys.html",
    show=keys,
    right=Right.KEYS_READ,
    of_one=True,
    actions=ACTIONS,
)
