"""``/dashboard/requests``: one request after another, with what each of its meters cost.

What was asked and answered is not here, for the ledger knows no text: it is beside it, for projects
that want it kept.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.names import Names
from gateway.dashboard.page import Page
from gateway.dashboard.request_detail import detail_of
from gateway.dashboard.request_line import Line
from gateway.dashboard.text_actions import ACTIONS
from gateway.dashboard.timespan import RANGES, timespan_of
from gateway.dashboard.visit import Visit
from gateway.errors import InvalidRequest
from gateway.identity.models import Project
from gateway.identity.rights import Right
from gateway.texts.repository import TextRepository
from gateway.texts.terms import MOST_DAYS
from gateway.usage.event import EPOCH
from gateway.usage.models import UsageEvent
from gateway.usage.record import Outcome
from gateway.usage.report_repository import Window
from gateway.usage.request_repository import Place, RequestRepository, Wanted

PER_PAGE = 50
MOST_TEXT = 256
MOST_CHOICES = 500
# In the address -> the column.
FILTERS = {
    "project": "project_id", "key": "key_id", "model": "model", "customer": "user_id",
    "status": "outcome", "endpoint": "endpoint",
}  # fmt: skip
STATUSES = tuple(map(str, Outcome))


async def requests(visit: Visit) -> dict[str, Any]:
    span = timespan_of(visit.query, visit.zone, visit.now, default="24h")
    rows, names = RequestRepository(visit.session, visit.organisation), await Names.of(visit)
    wanted = wanted_of(visit.query, span.window)
    before = visit.query.get("before", "")
    found = await rows.newest_first(
        PER_PAGE + 1, wanted, after=_place_of(before) if before else None
    )
    shown = found[:PER_PAGE]
    keys = await NameRepository(visit.session, visit.organisation).keys()
    line = await _liner(visit, names, keys)
    return {
        "span": span,
        "ranges": RANGES,
        "find": {name: visit.query.get(name, "").strip() for name in (*FILTERS, "request")},
        "projects": _choices(names.projects),
        "keys": _choices(keys),
        "statuses": [(each, each.replace("_", " ")) for each in STATUSES],
        "lines": [line(row) for row in shown],
        "detail": await detail_of(rows, visit, line),
        "texts": await _texts(visit),
        "most_days": MOST_DAYS,
        "older": visit.here(before=_written(shown[-1]), request=None)
        if len(found) > PER_PAGE
        else "",
        "newest": visit.here(before=None, request=None) if before else "",
    }


async def _texts(visit: Visit) -> Sequence[tuple[Project, int]]:
    """Projects whose texts the viewer decides about, with how many are kept."""
    projects = [p for p in await visit.rows.projects() if visit.may(Right.PROJECTS, p.id)]
    if not projects:
        return []
    counts = await TextRepository(visit.session, visit.organisation).counts()
    return [(project, counts.get(project.id, 0)) for project in projects]


def wanted_of(query: Mapping[str, str], window: Window) -> Wanted:
    """Raises InvalidRequest."""
    given = {
        column: text[:MOST_TEXT]
        for name, column in FILTERS.items()
        if (text := query.get(name, "").strip())
    }
    if (status := given.get("outcome", STATUSES[0])) not in STATUSES:
        known = ", ".join(STATUSES)
        raise InvalidRequest(f"status {status[:24]!r}: one of {known}", param="status")
    return Wanted(window=window, **given)


async def _liner(
    visit: Visit, names: Names, keys: Mapping[str, str]
) -> Callable[[UsageEvent], Line]:
    adapters = await names.namer("adapter")

    def line(row: UsageEvent) -> Line:
        adapter = adapters(row.adapter_id) if row.adapter_id else ""
        return Line(row, names.of_owner(row.project_id), keys.get(row.key_id, row.key_id), adapter)

    return line


def _choices(named: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted(named.items(), key=lambda choice: (choice[1], choice[0]))[:MOST_CHOICES]


def _written(row: UsageEvent) -> str:
    """A place as the address says it: microseconds and the id."""
    return f"{(row.started_at - EPOCH) // timedelta(microseconds=1)}.{row.id}"


def _place_of(text: str) -> Place:
    """Raises InvalidRequest."""
    micros, _, request = text.partition(".")
    if not (micros.isascii() and micros.isdigit() and len(micros) <= 16 and 0 < len(request) <= 64):
        raise InvalidRequest(f"before {text[:24]!r} is no place in this log", param="before")
    try:
        at: datetime = EPOCH + timedelta(microseconds=int(micros))
    except OverflowError as error:
        raise InvalidRequest("before lies beyond all time", param="before") from error
    return Place(at, request)


REQUESTS = Page(
    path="/requests",
    title="Requests",
    section="Usage",
    icon="rows",
    template="requests.html",
    show=requests,
    of_one=True,
    actions=ACTIONS,
)
