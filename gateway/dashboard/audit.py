"""``/dashboard/audit``: every change, who made it and what it was, newest first."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.audit.models import AuditEvent
from gateway.audit.repository import AuditFilter, AuditRepository
from gateway.dashboard.names import Names
from gateway.dashboard.page import Page
from gateway.dashboard.timespan import RANGES, timespan_of
from gateway.dashboard.visit import Visit
from gateway.identity.rights import Right
from gateway.usage.report_repository import Window

PER_PAGE = 50
MOST_TEXT = 128


@dataclass(frozen=True, slots=True)
class Line:
    event: AuditEvent
    actor: str
    project: str  # "" for a change of the organisation

    @property
    def change(self) -> str:
        """What was changed, as ``name value``; nested values as JSON."""
        return ", ".join(
            f"{name} {value if isinstance(value, str) else json.dumps(value)}"
            for name, value in self.event.change.items()
        )


async def audit(visit: Visit) -> dict[str, Any]:
    span = timespan_of(visit.query, visit.zone, visit.now)
    log = AuditRepository(visit.session, visit.organisation)
    wanted = _wanted(visit.query, span.window)
    before = visit.query.get("before", "")
    after = int(before) if before.isdecimal() and len(before) < 19 else None
    found = await log.newest_first(PER_PAGE + 1, wanted, after=after)
    shown, names = found[:PER_PAGE], await Names.of(visit)
    keys, logins = await names.namer("key"), await visit.rows.emails_of_logins()

    def actor(event: AuditEvent) -> str:
        if event.actor_type == "login":  # one of another organisation is an operator's
            return logins.get(event.actor_id, "operator")
        return keys(event.actor_id) if event.actor_type == "api_key" else event.actor_id

    return {
        "span": span,
        "ranges": RANGES,
        "find": {name: visit.query.get(name, "") for name in ("type", "object")},
        "lines": [
            Line(event, actor(event), names.of_owner(event.project_id) if event.project_id else "")
            for event in shown
        ],
        "older": visit.here(before=shown[-1].number) if len(found) > PER_PAGE else "",
        "newest": visit.here(before=None) if before else "",
    }


def _wanted(query: Mapping[str, str], window: Window) -> AuditFilter:
    given = {"type": "type", "object": "object_id"}
    values = {
        column: [query[name].strip()[:MOST_TEXT]]
        for name, column in given.items()
        if query.get(name, "").strip()
    }
    return AuditFilter(values, {"gte": window.start, "lt": window.end})


AUDIT = Page(
    path="/audit",
    title="Audit log",
    section="Access",
    icon="list",
    template="audit.html",
    show=audit,
    right=Right.AUDIT,
    of_one=True,
)
