"""``/invites``: who may come, and as what. Nothing is sent: the sign-in service is the way in, and
whoever it vouches for by the address of an invite has accepted it (``dashboard/invited.py``).
"""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk, Visit, body_of, role_in, text_of
from gateway.admin.paths import ROOT
from gateway.admin.shapes import Json, page
from gateway.errors import Conflict, InvalidRequest, ResourceNotFound
from gateway.identity.invite_repository import InviteRepository
from gateway.identity.models import Invite
from gateway.identity.people import checked_email
from gateway.identity.rights import Right, require_grant
from gateway.ids import new_id

GOOD_FOR = timedelta(days=7)
MOST_PROJECTS = 100


def add_invites(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/invites", **desk.needs(Right.READ))
    async def list_invites(request: Request, after: str | None = None, limit: int = 20) -> Json:
        async with desk.reading(request) as visit:
            rows = await _rows(visit).newest_first()
            return page([shapes.invite(row, visit.now) for row in rows], after, limit)

    @router.post(ROOT + "/invites", **desk.needs(Right.PEOPLE))
    async def create_invite(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            email, role = checked_email(text_of(body, "email")), role_in(body)
            require_grant(visit.who, role)
            projects = await _projects(visit, body)
            if any(row.email == email for row in await visit.rows.people()):
                raise Conflict("there is a user with this address", param="email")
            if await _rows(visit).pending(email, visit.now) is not None:
                raise Conflict("this address is invited already", param="email")
            row = Invite(
                id=new_id("invite"),
                organisation_id=visit.who.organisation,
                email=email,
                role=role,
                projects=projects,
                created_at=visit.now,
                expires_at=visit.now + GOOD_FOR,
                accepted_at=None,
                user_id=None,
            )
            _rows(visit).add(row)
            await visit.note("invite.sent", row.id, email=email, role=role, projects=projects)
            return shapes.invite(row, visit.now)

    @router.get(ROOT + "/invites/{invite_id}", **desk.needs(Right.READ))
    async def retrieve_invite(request: Request, invite_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.invite(await _one(visit, invite_id), visit.now)

    @router.delete(ROOT + "/invites/{invite_id}", **desk.needs(Right.PEOPLE))
    async def delete_invite(request: Request, invite_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _one(visit, invite_id)
            if row.accepted_at is not None:
                raise Conflict("this invite was accepted; delete the user instead")
            await _rows(visit).remove(row)
            await visit.note("invite.deleted", row.id, email=row.email)
            return {"id": row.id, "deleted": True, "object": "organization.invite.deleted"}


def _rows(visit: Visit) -> InviteRepository:
    return InviteRepository(visit.session, visit.who.organisation)


async def _one(visit: Visit, invite: str) -> Invite:
    if (row := await _rows(visit).one(invite)) is None:
        raise ResourceNotFound("no invite of this id")
    return row


async def _projects(visit: Visit, body: Json) -> dict[str, str]:
    """Id -> role. Without any, the invite is to the organisation alone."""
    given: Any = body.get("projects") or []
    if not isinstance(given, list) or len(given) > MOST_PROJECTS:
        raise InvalidRequest(
            f"projects must be an array of at most {MOST_PROJECTS} objects", param="projects"
        )
    found: dict[str, str] = {}
    live = {row.id for row in await visit.rows.projects()} if given else set()
    for place, each in enumerate(given):
        if not isinstance(each, dict):
            raise InvalidRequest("a project is an object", param=f"projects[{place}]")
        project, role = text_of(each, "id"), role_in(each)
        if project not in live:
            raise ResourceNotFound("no project of this id", param=f"projects[{place}].id")
        require_grant(visit.who, role, project)
        found[project] = role
    return found
