"""``/dashboard/adapters``: versions, where they are and what was accepted; what names lead to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.catalog.models import Adapter, AdapterAlias, AdapterState
from gateway.catalog.repository import AdapterRepository, AliasRepository
from gateway.dashboard.adapter_actions import ACTIONS
from gateway.dashboard.closeness import closeness, speeds
from gateway.dashboard.page import TENANTS, Page
from gateway.dashboard.timespan import timespan_of
from gateway.dashboard.visit import Visit
from gateway.identity.rights import Right
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.report import Usage

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Version:
    row: Adapter
    usage: Usage  # this month
    engines: int  # that hold it on their device
    names: Sequence[str]  # aliases that lead to it

    @property
    def reference(self) -> str:
        return f"{self.row.name}@{self.row.version}"

    @property
    def is_ready(self) -> bool:
        return self.row.state == AdapterState.READY


@dataclass(frozen=True, slots=True)
class Alias:
    row: AdapterAlias
    target: str  # name@version
    canary: str  # "" for none
    previous: str


async def adapters(visit: Visit) -> dict[str, Any]:
    projects = {row.id: row.name for row in await visit.rows.projects()}
    project = visit.query.get("project", "")
    project = project if project in projects else next(iter(projects), "")
    rows = await AdapterRepository(visit.session, project).all() if project else []
    aliases = await AliasRepository(visit.session, project).all() if project else []
    wanted = visit.query.get("version", "")
    named = {row.id: f"{row.name}@{row.version}" for row in rows}
    used = await _used(visit, project)
    members = visit.sources.fleet.members
    versions = [
        Version(
            row,
            used.get(row.id, Usage()),
            sum(row.digest in member.resident for member in members),
            [alias.name for alias in aliases if row.id in (alias.adapter_id, alias.canary_id)],
        )
        for row in sorted(rows, key=lambda row: (row.name, -row.version))
    ]
    return {
        "projects": projects,
        "project": project,
        "versions": versions[:MOST_SHOWN],
        "left_out": max(0, len(versions) - MOST_SHOWN),
        "aliases": [_alias(row, named) for row in aliases],
        "ready": [each.reference for each in versions if each.is_ready],
        "bytes": sum({each.row.digest: each.row.nbytes for each in versions
                      if each.is_ready}.values()),
        "engines": len(members),
        "report": await _report(visit, next((each for each in versions if each.row.id == wanted),
                                            None)),
        "may": bool(project) and visit.may(Right.ADAPTERS, project),
    }  # fmt: skip


async def _used(visit: Visit, project: str) -> Mapping[str, Usage]:
    month = timespan_of({"range": "month"}, visit.zone, visit.now)
    report = visit.report(project or None)
    sums = await report.within(month.window, group_by=("adapter_id",))
    return {adapter: usage for (adapter,), usage in sums.items()}


def _alias(row: AdapterAlias, named: Mapping[str, str]) -> Alias:
    canary, previous = named.get(row.canary_id or "", ""), named.get(row.previous_id or "", "")
    return Alias(row, named.get(row.adapter_id, row.adapter_id), canary, previous)


async def _report(visit: Visit, version: Version | None) -> dict[str, Any] | None:
    """What was accepted of the version that the address names, and what its canary showed; where it
    is, and how fast it answered this month under each of its names."""
    if version is None:
        return None
    row = version.row
    await visit.session.refresh(row, ["report"])
    month = timespan_of({"range": "month"}, visit.zone, visit.now)
    paces = PaceRepository(visit.session, visit.organisation)
    called = {row.name, version.reference, *version.names}
    counted = await paces.by_model(month.window, row.project_id, called)
    found = orjson.loads(row.report) if row.report else {}
    text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
    return {"of": f"{row.name}@{row.version}", "digest": row.digest, "text": text,
            "engines": await closeness(visit.sources.fleet.members, row.digest),
            "speeds": speeds(counted)}  # fmt: skip


ADAPTERS = Page(
    path="/adapters",
    title="Adapters",
    section="Models",
    icon="layers",
    template="adapters.html",
    show=adapters,
    audiences=TENANTS,
    of_one=True,
    actions=ACTIONS,
)
