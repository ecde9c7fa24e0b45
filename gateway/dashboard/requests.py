"""``/dashboard/requests``: one request after another, with what each of its meters cost; and what
was refused, by kind and minute.

What was asked and answered is not here, for the ledger knows no text: it is beside it, for projects
that want it kept.
"""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.names import Names
from gateway.dashboard.page import Content, Page
from gateway.dashboard.quotas import names_of
from gateway.dashboard.request_detail import detail_of
from gateway.dashboard.request_file import MOST_ROWS, request_file
from gateway.dashboard.request_line import Line, RefusedLine
from gateway.dashboard.request_log import (
    ADMITTED,
    CODES,
    FILTERS,
    OUTCOMES,
    REFUSED,
    Entry,
    RequestLog,
    place_of,
    sought,
    written,
)
from gateway.dashboard.text_actions import ACTIONS
from gateway.dashboard.timespan import RANGES, timespan_of
from gateway.dashboard.visit import Visit
from gateway.identity.models import Project
from gateway.identity.rights import Right
from gateway.refusals.keeper import KEPT_DAYS
from gateway.texts.repository import TextRepository
from gateway.texts.terms import MOST_DAYS
from gateway.usage.models import UsageEvent

PER_PAGE = 50
MOST_CHOICES = 500
CHOICES = (
    ("Admitted", [(ADMITTED, "all admitted"), *((o, o.replace("_", " ")) for o in OUTCOMES)]),
    (
        "Refused",
        [
            (REFUSED, "all refused"),
            *((str(code), f"{code} {HTTPStatus(code).phrase.lower()}") for code in CODES),
        ],
    ),
)


async def requests(visit: Visit) -> Content:
    span = timespan_of(visit.query, visit.zone, visit.now, default="24h")
    log, names = RequestLog(visit.session, visit.organisation), await Names.of(visit)
    what = sought(visit.query, span.window)
    before = visit.query.get("before", "")
    after = place_of(before) if before else None
    keys = await NameRepository(visit.session, visit.organisation).keys()
    line = await _liner(visit, names, keys)
    if visit.query.get("format") == "csv":
        return await request_file(log.pieces(MOST_ROWS, what, after=after), line, visit.zone)
    found = await log.newest_first(PER_PAGE + 1, what, after=after)
    shown = found[:PER_PAGE]
    return {
        "span": span,
        "ranges": RANGES,
        "find": {
            name: visit.query.get(name, "").strip() for name in (*FILTERS, "status", "request")
        },
        "projects": _choices(names.projects),
        "keys": _choices(keys),
        "statuses": CHOICES,
        "lines": [line(row) for row in shown],
        "detail": await detail_of(log, visit, line),
        "texts": await _texts(visit),
        "most_days": MOST_DAYS,
        "kept_days": KEPT_DAYS,
        "most_rows": MOST_ROWS,
        "older": visit.here(before=written(shown[-1]), request=None)
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


async def _liner(
    visit: Visit, names: Names, keys: Mapping[str, str]
) -> Callable[[Entry], Line | RefusedLine]:
    adapters, subjects = await names.namer("adapter"), await names_of(visit)

    def line(row: Entry) -> Line | RefusedLine:
        project, key = names.of_owner(row.project_id), keys.get(row.key_id, row.key_id)
        if not isinstance(row, UsageEvent):
            return RefusedLine(row, project, key or "several keys", subjects)
        adapter = adapters(row.adapter_id) if row.adapter_id else ""
        return Line(row, project, key, adapter)

    return line


def _choices(named: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted(named.items(), key=lambda choice: (choice[1], choice[0]))[:MOST_CHOICES]


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
