"""``/users`` and ``…/projects/{id}/users``: people and their roles.

People are made here (``POST /users``), or come by an invite (``invites.py``): nobody signs up.
"""

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk, Visit, body_of, role_in, text_of
from gateway.admin.paths import ONE, ROOT
from gateway.admin.shapes import Json, page
from gateway.errors import Conflict, ResourceNotFound
from gateway.identity.models import ProjectUser, Role, User
from gateway.identity.people import checked_email
from gateway.identity.rights import Right, require_grant
from gateway.identity.staff import Staff


def add_people(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/users", **desk.needs(Right.READ))
    async def list_users(request: Request, after: str | None = None, limit: int = 20) -> Json:
        query = request.query_params
        emails = {*query.getlist("emails[]"), *query.getlist("emails")}
        async with desk.reading(request) as visit:
            rows = [r for r in await visit.rows.people() if not emails or r.email in emails]
            return page([shapes.user(row) for row in rows], after, limit)

    @router.post(ROOT + "/users", **desk.needs(Right.PEOPLE))
    async def create_user(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            role = role_in(body)
            row = await _staff(visit).add(text_of(body, "email"), text_of(body, "name"), role)
            await visit.note("user.added", row.id, role=role)
            return shapes.user(row)

    @router.get(ROOT + "/users/{user_id}", **desk.needs(Right.READ))
    async def retrieve_user(request: Request, user_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.user(await _staff(visit).person(user_id))

    @router.post(ROOT + "/users/{user_id}", **desk.needs(Right.PEOPLE))
    async def change_user(request: Request, user_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            if body.get("role") is None:
                return shapes.user(await _staff(visit).person(user_id))
            row, before = await _staff(visit).give_role(user_id, role_in(body))
            await visit.note("user.updated", row.id, role=row.role, before=before)
            return shapes.user(row)

    @router.delete(ROOT + "/users/{user_id}", **desk.needs(Right.PEOPLE))
    async def delete_user(request: Request, user_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _staff(visit).remove(user_id)
            await visit.note("user.deleted", row.id)
            return {"id": row.id, "deleted": True, "object": "organization.user.deleted"}


def add_members(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ONE + "/users", **desk.needs(Right.READ))
    async def list_members(
        request: Request, project_id: str, after: str | None = None, limit: int = 20
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            people = {row.id: row for row in await visit.rows.people()}
            rows = await visit.rows.members(project_id)
            return page([shapes.member(row, people[row.user_id]) for row in rows], after, limit)

    @router.post(ONE + "/users", **desk.needs(Right.PEOPLE))
    async def create_member(request: Request, project_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            project, person = await visit.project(project_id), await _named(visit, body)
            role = role_in(body)
            require_grant(visit.who, role, project.id)
            if any(row.user_id == person.id for row in await visit.rows.members(project.id)):
                raise Conflict("this user is in the project", param="user_id")
            row = ProjectUser(
                project_id=project.id, user_id=person.id, role=role, created_at=visit.now
            )
            visit.rows.add(row)
            await visit.note("user.added", person.id, project.id, role=role)
            return shapes.member(row, person)

    @router.get(ONE + "/users/{user_id}", **desk.needs(Right.READ))
    async def retrieve_member(request: Request, project_id: str, user_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.member(*await _member(visit, project_id, user_id))

    @router.post(ONE + "/users/{user_id}", **desk.needs(Right.PEOPLE))
    async def change_member(request: Request, project_id: str, user_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            row, person = await _member(visit, project_id, user_id)
            before, role = Role(row.role), role_in(body)
            require_grant(visit.who, before, project_id)
            require_grant(visit.who, role, project_id)
            row.role = role
            await visit.note("user.updated", person.id, project_id, role=role, before=before)
            return shapes.member(row, person)

    @router.delete(ONE + "/users/{user_id}", **desk.needs(Right.PEOPLE))
    async def delete_member(request: Request, project_id: str, user_id: str) -> Json:
        async with desk.changing(request) as visit:
            row, person = await _member(visit, project_id, user_id)
            require_grant(visit.who, Role(row.role), project_id)
            await visit.rows.remove(row)
            await visit.note("user.deleted", person.id, project_id)
            kind = "organization.project.user.deleted"
            return {"id": person.id, "deleted": True, "object": kind}


def _staff(visit: Visit) -> Staff:
    return Staff(visit.rows, visit.who, visit.now)


async def _named(visit: Visit, body: Json) -> User:
    """By ``user_id``, or by ``email``."""
    if body.get("user_id") is not None:
        return await _staff(visit).person(text_of(body, "user_id"))
    email = checked_email(text_of(body, "email"))
    for row in await visit.rows.people():
        if row.email == email:
            return row
    raise ResourceNotFound("no user with this address", param="email")


async def _member(visit: Visit, project_id: str, user_id: str) -> tuple[ProjectUser, User]:
    project, person = await visit.project(project_id), await _staff(visit).person(user_id)
    for row in await visit.rows.members(project.id):
        if row.user_id == person.id:
            return row, person
    raise ResourceNotFound("no user of this id")
