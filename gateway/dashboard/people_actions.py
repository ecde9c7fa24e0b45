"""What is done on the page of projects and people."""

from gateway.dashboard.page import Action, Done
from gateway.dashboard.visit import Form, Visit
from gateway.errors import InvalidRequest
from gateway.identity.models import Role
from gateway.identity.rights import Right
from gateway.identity.service import IdentityService
from gateway.identity.staff import Staff


async def create_project(visit: Visit, form: Form) -> Done:
    service = IdentityService(visit.session, visit.now)
    row = await service.create_project_of(visit.organisation, form.get("name", ""))
    await visit.session.flush()
    await visit.note("project.created", row.id, row.id, name=row.name)
    return Done(f"The project {row.name} is there: make it a key.")


async def archive_project(visit: Visit, form: Form) -> Done:
    row = await visit.project(form.get("project", ""))
    await visit.rows.archive(row, visit.now)
    await visit.note("project.archived", row.id, row.id)
    return Done(f"The project {row.name} is archived, and its keys are revoked.")


async def add_person(visit: Visit, form: Form) -> Done:
    role = _role(form)
    row = await _staff(visit).add(form.get("email", ""), form.get("name", ""), role)
    await visit.note("user.added", row.id, role=role)
    return Done(f"{row.name} is in the organisation as {role}.")


async def give_role(visit: Visit, form: Form) -> Done:
    row, before = await _staff(visit).give_role(form.get("user", ""), _role(form))
    await visit.note("user.updated", row.id, role=row.role, before=before)
    return Done(f"{row.name} was {before} and is {row.role} now.")


async def remove_person(visit: Visit, form: Form) -> Done:
    row = await _staff(visit).remove(form.get("user", ""))
    await visit.note("user.deleted", row.id)
    return Done(f"{row.name} is removed, with the keys and the sign-in they had.")


def _staff(visit: Visit) -> Staff:
    return Staff(visit.rows, visit.who, visit.now)


def _role(form: Form) -> Role:
    if (role := form.get("role", "")) not in tuple(Role):
        raise InvalidRequest(f"role {role[:32]!r}: one of {', '.join(Role)}", param="role")
    return Role(role)


ACTIONS = {
    "create-project": Action(create_project, Right.PROJECTS),
    "archive-project": Action(archive_project, Right.PROJECTS),
    "add-person": Action(add_person, Right.PEOPLE),
    "give-role": Action(give_role, Right.PEOPLE),
    "remove-person": Action(remove_person, Right.PEOPLE),
}
