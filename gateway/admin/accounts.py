"""``…/service_accounts``: programs of a project, and their keys."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk, Visit, body_of, text_of
from gateway.admin.keys import key_terms
from gateway.admin.paths import ONE
from gateway.admin.shapes import Json, page
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.identity.models import Project, ServiceAccount
from gateway.identity.rights import Right
from gateway.identity.service import IdentityService
from gateway.names import checked_name

ALL = ONE + "/service_accounts"
ACCOUNT = ALL + "/{account_id}"
ROLES = ("member", "owner")


def add_accounts(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ALL, **desk.needs(Right.KEYS_READ))
    async def list_accounts(
        request: Request, project_id: str, after: str | None = None, limit: int = 20
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            rows = await visit.rows.accounts(project_id)
            return page([shapes.account(row) for row in rows], after, limit)

    @router.post(ALL, **desk.needs(Right.KEYS, secret=True))
    async def create_account(request: Request, project_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            project = await _open_project(visit, project_id)
            service = IdentityService(visit.session, visit.now)
            account = service.create_account(project, text_of(body, "name"))
            await visit.session.flush()
            await visit.note("service_account.created", account.id, project.id, name=account.name)
            key = await _issued(desk, visit, project, account, body)
            return {**shapes.account(account), "api_key": key}

    @router.get(ACCOUNT, **desk.needs(Right.KEYS_READ))
    async def retrieve_account(request: Request, project_id: str, account_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.account(await _account(visit, project_id, account_id))

    @router.post(ACCOUNT, **desk.needs(Right.KEYS))
    async def change_account(request: Request, project_id: str, account_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            account = await _account(visit, project_id, account_id)
            change: dict[str, Any] = {}
            if body.get("name") is not None:
                change["name"] = account.name = checked_name(text_of(body, "name"), param="name")
            if body.get("role") is not None:
                change["role"] = account.role = _role(text_of(body, "role"))
            if change:
                await visit.note("service_account.updated", account_id, project_id, **change)
            return shapes.account(account)

    @router.delete(ACCOUNT, **desk.needs(Right.KEYS))
    async def delete_account(request: Request, project_id: str, account_id: str) -> Json:
        async with desk.changing(request) as visit:
            account = await _account(visit, project_id, account_id)
            account.deleted_at = visit.now
            for key in await visit.rows.keys(project_id):
                if key.service_account_id == account_id:
                    key.revoked_at = visit.now
            await visit.note("service_account.deleted", account_id, project_id)
            kind = "organization.project.service_account.deleted"
            return {"id": account_id, "deleted": True, "object": kind}

    @router.post(ACCOUNT + "/api_keys", **desk.needs(Right.KEYS, secret=True))
    async def create_key(request: Request, project_id: str, account_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            account = await _account(visit, project_id, account_id)
            project = await _open_project(visit, project_id)
            return await _issued(desk, visit, project, account, {"name": account.name, **body})


async def _issued(
    desk: AdminDesk, visit: Visit, project: Project, account: ServiceAccount, body: Json
) -> Json:
    """Another key of the account: the only time that its text is shown."""
    service, terms = IdentityService(visit.session, visit.now), key_terms(body, visit)
    key = service.issue(project, terms, peppers=desk.peppers, account=account)
    await visit.session.flush()
    await visit.note("api_key.created", key.id, project.id)
    return {
        "id": key.id,
        "object": "organization.project.service_account.api_key",
        "name": terms.name,
        "value": key.text,
        "created_at": shapes.seconds(visit.now),
        "expires_at": shapes.seconds(terms.expires_at),
    }


async def _open_project(visit: Visit, project_id: str) -> Project:
    project = await visit.project(project_id)
    if project.archived_at is not None:
        raise InvalidRequest("this project is archived")
    return project


async def _account(visit: Visit, project_id: str, account_id: str) -> ServiceAccount:
    for account in await visit.rows.accounts(project_id):
        if account.id == account_id:
            return account
    raise ResourceNotFound("no service account of this id")


def _role(name: str) -> str:
    if name not in ROLES:
        raise InvalidRequest(f"role {name[:32]!r}: one of {', '.join(ROLES)}", param="role")
    return name
