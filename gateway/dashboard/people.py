"""``/dashboard/people``: projects, and who is in the organisation and in them, with what role."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.dashboard.page import TENANTS, Page
from gateway.dashboard.people_actions import ACTIONS
from gateway.dashboard.timespan import timespan_of
from gateway.dashboard.visit import Visit
from gateway.identity.models import Project, Role, User
from gateway.identity.rights import Right
from gateway.usage.report import Usage


@dataclass(frozen=True, slots=True)
class Line:
    row: User
    roles: Sequence[tuple[str, str]]  # project, and the role there
    signs_in: bool


@dataclass(frozen=True, slots=True)
class Work:
    row: Project
    keys: int
    people: int  # with a role of its own there
    usage: Usage  # this month


async def people(visit: Visit) -> dict[str, Any]:
    projects = await visit.rows.projects()
    members, logins = (
        await visit.rows.members(),
        set((await visit.rows.emails_of_logins()).values()),
    )
    keys, names = await visit.rows.key_counts(), {row.id: row.name for row in projects}
    month = timespan_of({"range": "month"}, visit.zone, visit.now)
    sums = await visit.report().within(month.window, group_by=("project_id",))
    used = {project: usage for (project,), usage in sums.items()}
    return {
        "projects": [
            Work(
                row,
                keys.get(row.id, 0),
                sum(member.project_id == row.id for member in members),
                used.get(row.id, Usage()),
            )
            for row in projects
        ],
        "people": [
            Line(
                row,
                [(names[each.project_id], each.role) for each in members
                 if each.user_id == row.id and each.project_id in names],
                row.email in logins,
            )
            for row in await visit.rows.people()
        ],
        "roles": [str(role) for role in Role],
        "may_people": visit.may(Right.PEOPLE),
        "may_projects": visit.may(Right.PROJECTS),
    }  # fmt: skip


PEOPLE = Page(
    path="/people",
    title="Projects, people",
    section="Access",
    icon="people",
    template="people.html",
    show=people,
    audiences=TENANTS,
    of_one=True,
    actions=ACTIONS,
)
