"""``…/api_keys`` and ``/admin_api_keys``."""

from datetime import datetime, timedelta

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk, Visit, body_of, integer_of, role_in, text_of
from gateway.admin.paths import ONE, ROOT
from gateway.admin.shapes import Json, page
from gateway.errors import (
    Conflict,
    InvalidRequest,
    MissingParameter,
    ResourceNotFound,
    UnsupportedParameter,
)
from gateway.identity.models import ApiKey, Role, User
from gateway.identity.rights import Right, require_grant, roles_of
from gateway.identity.service import LONGEST_OVERLAP, IdentityService, KeyTerms

OVERLAP_S = 24 * 3600  # how long a rotated key goes on working, where nobody says


def add_keys(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ONE + "/api_keys", **desk.needs(Right.KEYS_READ))
    async def list_keys(
        request: Request, project_id: str, after: str | None = None, limit: int = 20
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            accounts = {row.id: row for row in await visit.rows.accounts(project_id)}
            rows = await visit.rows.keys(project_id)
            return page([shapes.key(row, accounts) for row in rows], after, limit)

    @router.get(ONE + "/api_keys/{key_id}", **desk.needs(Right.KEYS_READ))
    async def retrieve_key(request: Request, project_id: str, key_id: str) -> Json:
        async with desk.reading(request) as visit:
            accounts = {row.id: row for row in await visit.rows.accounts(project_id)}
            return shapes.key(await _key(visit, project_id, key_id), accounts)

    @router.post(ONE + "/api_keys/{key_id}", **desk.needs(Right.KEYS))
    async def change_key(request: Request, project_id: str, key_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            row = await _key(visit, project_id, key_id)
            if body.get("scopes") is not None:
                raise UnsupportedParameter("scopes cannot be changed here", param="scopes")
            if (expires_at := _expiry(body, visit)) is None:
                raise MissingParameter("give expires_in_seconds", param="expires_in_seconds")
            if row.expires_at is not None and row.expires_at <= visit.now:
                raise Conflict("this key has ended already", param="key")
            row.expires_at = expires_at
            await visit.note(
                "api_key.updated", key_id, project_id, expires_at=shapes.seconds(expires_at)
            )
            accounts = {account.id: account for account in await visit.rows.accounts(project_id)}
            return shapes.key(row, accounts)

    @router.delete(ONE + "/api_keys/{key_id}", **desk.needs(Right.KEYS))
    async def delete_key(request: Request, project_id: str, key_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _key(visit, project_id, key_id)
            row.revoked_at = visit.now
            await visit.note("api_key.deleted", row.id, project_id)
            return {"id": row.id, "deleted": True, "object": "organization.project.api_key.deleted"}

    @router.post(ONE + "/api_keys/{key_id}/rotate", **desk.needs(Right.KEYS, secret=True))
    async def rotate_key(request: Request, project_id: str, key_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            await visit.project(project_id)
            row, value = await _rotated(desk, visit, project_id, key_id, body)
            accounts = {account.id: account for account in await visit.rows.accounts(project_id)}
            return {**shapes.key(row, accounts), "value": value, "replaces": key_id}


def add_admin_keys(router: APIRouter, desk: AdminDesk) -> None:
    needed = desk.needs(Right.ADMIN_KEYS)
    shown_once = desk.needs(Right.ADMIN_KEYS, secret=True)

    @router.get(ROOT + "/admin_api_keys", **needed)
    async def list_admin_keys(
        request: Request, after: str | None = None, limit: int = 20, order: str = "asc"
    ) -> Json:
        async with desk.reading(request) as visit:
            people = {row.id: row for row in await visit.rows.people()}
            rows = await visit.rows.keys(None)
            shown = [shapes.admin_key(row, people.get(row.user_id or "")) for row in rows]
            return page(shown, after, limit, order=order)

    @router.post(ROOT + "/admin_api_keys", **shown_once)
    async def create_admin_key(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            service = IdentityService(visit.session, visit.now)
            terms = key_terms(body, visit)
            person, role = await _acting_as(body, visit)
            require_grant(visit.who, role)
            key = service.issue_admin_of(
                visit.who.organisation, terms, peppers=desk.peppers,
                role=None if person else role, user=person.id if person else None,
            )  # fmt: skip
            await visit.session.flush()
            await visit.note("api_key.created", key.id, role=role)
            row = await _key(visit, None, key.id)
            return {**shapes.admin_key(row, person), "value": key.text}

    @router.get(ROOT + "/admin_api_keys/{key_id}", **needed)
    async def retrieve_admin_key(request: Request, key_id: str) -> Json:
        async with desk.reading(request) as visit:
            row = await _key(visit, None, key_id)
            return shapes.admin_key(row, await _person(row, visit))

    @router.post(ROOT + "/admin_api_keys/{key_id}/rotate", **shown_once)
    async def rotate_admin_key(request: Request, key_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            old = await _key(visit, None, key_id)
            person = await _person(old, visit)
            require_grant(visit.who, _role(old, person))
            row, value = await _rotated(desk, visit, None, key_id, body)
            return {**shapes.admin_key(row, person), "value": value, "replaces": key_id}

    @router.delete(ROOT + "/admin_api_keys/{key_id}", **needed)
    async def delete_admin_key(request: Request, key_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _key(visit, None, key_id)
            person = await _person(row, visit)
            require_grant(visit.who, _role(row, person))
            row.revoked_at = visit.now
            await visit.note("api_key.deleted", key_id)
            kind = "organization.admin_api_key.deleted"
            return {"id": key_id, "deleted": True, "object": kind}


async def _rotated(
    desk: AdminDesk, visit: Visit, project: str | None, key_id: str, body: Json
) -> tuple[ApiKey, str]:
    """The key in the place of this one, and its text. Raises as ``IdentityService.rotate``."""
    await _key(visit, project, key_id)  # of this organisation, or not at all
    seconds = integer_of(body, "overlap_seconds")
    longest = int(LONGEST_OVERLAP.total_seconds())
    overlap = OVERLAP_S if seconds is None else seconds
    if not 0 <= overlap <= longest:
        raise InvalidRequest(
            f"overlap_seconds is {overlap}; it must be from 0 to {longest}", param="overlap_seconds"
        )
    service = IdentityService(visit.session, visit.now)
    made = await service.rotate(key_id, timedelta(seconds=overlap), peppers=desk.peppers)
    await visit.session.flush()
    for kind, named in (("api_key.created", made.id), ("api_key.updated", key_id)):
        await visit.note(kind, named, project, rotation=made.id, of=key_id)
    return await _key(visit, project, made.id), made.text


def _role(row: ApiKey, person: User | None) -> Role:
    """With which an admin key acts."""
    return Role(row.role or (person.role if person else Role.OWNER))


async def _person(row: ApiKey, visit: Visit) -> User | None:
    return None if row.user_id is None else await visit.rows.person(row.user_id)


async def _acting_as(body: Json, visit: Visit) -> tuple[User | None, Role]:
    """Whose a new admin key is, and its role: a person's, the one given, or the maker's own."""
    if body.get("user_id") is None:
        own = min(roles_of(visit.who, None), key=list(Role).index)
        return None, own if body.get("role") is None else role_in(body)
    if body.get("role") is not None:
        raise InvalidRequest("a key of a user has the user's role", param="role")
    person = await visit.rows.person(text_of(body, "user_id"))
    if person is None:
        raise ResourceNotFound("no user of this id", param="user_id")
    return person, Role(person.role)


async def _key(visit: Visit, project: str | None, key_id: str) -> ApiKey:
    for row in await visit.rows.keys(project):
        if row.id == key_id:
            return row
    raise ResourceNotFound("no key of this id")


def key_terms(body: Json, visit: Visit) -> KeyTerms:
    """Of a new key."""
    return KeyTerms(name=text_of(body, "name"), expires_at=_expiry(body, visit))


def _expiry(body: Json, visit: Visit) -> datetime | None:
    seconds = integer_of(body, "expires_in_seconds")
    if seconds is not None and not 0 < seconds < 10**10:
        raise InvalidRequest("expires_in_seconds must be positive", param="expires_in_seconds")
    return visit.now + timedelta(seconds=seconds) if seconds else None
