"""``/dashboard/organisations``: an operator chooses whose pages to look at."""

from typing import Any
from urllib.parse import urlencode

from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.page import OPERATORS, Page
from gateway.dashboard.timespan import timespan_of
from gateway.dashboard.visit import ROOT, Visit
from gateway.usage.report import Usage

MOST_SHOWN = 200


async def organisations(visit: Visit) -> dict[str, Any]:
    wanted = visit.query.get("find", "").strip().lower()
    target = visit.query.get("for", "")
    if not target.startswith(f"{ROOT}/") or "?" in target:
        target = f"{ROOT}/"
    span = timespan_of({"range": "month"}, visit.days_zone, visit.now)
    rows = [
        row
        for row in await NameRepository(visit.session, None).payers()
        if wanted in row.name.lower() or wanted == row.id
    ]
    spent = {
        name: usage
        for (name,), usage in (
            await visit.report().within(span.window, group_by=("organisation_id",))
        ).items()
    }
    order = sorted(rows, key=lambda row: (-spent.get(row.id, Usage()).cost.total, row.name))
    return {
        "find": wanted,
        "target": target,
        "found": len(rows),
        "rows": [
            (row, spent.get(row.id, Usage()), f"{target}?{urlencode({'org': row.id})}")
            for row in order[:MOST_SHOWN]
        ],
    }


ORGANISATIONS = Page(
    path="/organisations",
    title="Organisations",
    section="",
    icon="building",
    template="organisations.html",
    show=organisations,
    audiences=OPERATORS,
)
