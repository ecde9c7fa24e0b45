"""``/v1/organization/…``: what the official client's ``client.admin`` calls."""

from datetime import timedelta

from fastapi import APIRouter, Depends
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.alerts import add_alerts
from gateway.admin.desk import AdminDesk, Visit, body_of, integer_of, text_of
from gateway.admin.money import amount_shown, threshold_of
from gateway.admin.reports import add_reports
from gateway.admin.shapes import NO_LIMIT, Json, page
from gateway.audit.repository import AuditRepository
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.identity.models import ApiKey
from gateway.identity.service import IdentityService, KeyTerms
from gateway.limits.models import Level
from gateway.limits.period import MONTH
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Rates, Subject
from gateway.limits.service import LimitService

ROOT = "/v1/organization"
ONE = ROOT + "/projects/{project_id}"
RATES = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "max_requests_per_1_day": "requests_per_day",
    "max_concurrent_requests": "concurrency",
}


def admin_router(desk: AdminDesk) -> APIRouter:
    router = APIRouter(dependencies=[Depends(desk.admit)])
    _add_projects(router, desk)
    _add_keys(router, desk)
    _add_admin_keys(router, desk)
    _add_limits(router, desk)
    _add_audit(router, desk)
    add_reports(router, desk)
    add_alerts(router, desk, ROOT + "/spend_alerts", "organization.spend_alert")
    add_alerts(router, desk, ONE + "/spend_alerts", "project.spend_alert")
    return router


def _add_projects(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/projects")
    async def list_projects(
        request: Request, after: str | None = None, limit: int = 20, include_archived: bool = False
    ) -> Json:
        async with desk.reading(request) as visit:
            rows = await visit.rows.projects(archived=include_archived)
            return page([shapes.project(row) for row in rows], after, limit)

    @router.post(ROOT + "/projects")
    async def create_project(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            service = IdentityService(visit.session, visit.now)
            row = await service.create_project_of(visit.who.organisation, text_of(body, "name"))
            await visit.session.flush()
            await visit.note("project.created", row.id, row.id, name=row.name)
            return shapes.project(row)

    @router.get(ONE)
    async def retrieve_project(request: Request, project_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.project(await visit.project(project_id))

    @router.post(ONE + "/archive")
    async def archive_project(request: Request, project_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await visit.project(project_id)
            row.archived_at = row.archived_at or visit.now
            for key in await visit.rows.keys(row.id):
                key.revoked_at = visit.now
            await visit.note("project.archived", row.id, row.id)
            return shapes.project(row)


def _add_keys(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ONE + "/api_keys")
    async def list_keys(
        request: Request, project_id: str, after: str | None = None, limit: int = 20
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            accounts = {row.id: row for row in await visit.rows.accounts(project_id)}
            rows = await visit.rows.keys(project_id)
            return page([shapes.key(row, accounts) for row in rows], after, limit)

    @router.get(ONE + "/api_keys/{key_id}")
    async def retrieve_key(request: Request, project_id: str, key_id: str) -> Json:
        async with desk.reading(request) as visit:
            accounts = {row.id: row for row in await visit.rows.accounts(project_id)}
            return shapes.key(await _key(visit, project_id, key_id), accounts)

    @router.delete(ONE + "/api_keys/{key_id}")
    async def delete_key(request: Request, project_id: str, key_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _key(visit, project_id, key_id)
            row.revoked_at = visit.now
            await visit.note("api_key.deleted", row.id, project_id)
            return {"id": row.id, "deleted": True, "object": "organization.project.api_key.deleted"}

    @router.get(ONE + "/service_accounts")
    async def list_accounts(
        request: Request, project_id: str, after: str | None = None, limit: int = 20
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            rows = await visit.rows.accounts(project_id)
            return page([shapes.account(row) for row in rows], after, limit)

    @router.post(ONE + "/service_accounts")
    async def create_account(request: Request, project_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            project = await visit.project(project_id)
            if project.archived_at is not None:
                raise InvalidRequest("this project is archived")
            service = IdentityService(visit.session, visit.now)
            account = service.create_account(project, text_of(body, "name"))
            await visit.session.flush()
            terms = _terms(body, visit)
            key = service.issue(project, terms, peppers=desk.peppers, account=account)
            await visit.session.flush()
            await visit.note("service_account.created", account.id, project.id, name=account.name)
            await visit.note("api_key.created", key.id, project.id)
            return {
                **shapes.account(account),
                "api_key": {
                    "id": key.id,
                    "object": "organization.project.service_account.api_key",
                    "name": terms.name,
                    "value": key.text,
                    "created_at": shapes.seconds(visit.now),
                    "expires_at": shapes.seconds(terms.expires_at),
                },
            }

    @router.delete(ONE + "/service_accounts/{account_id}")
    async def delete_account(request: Request, project_id: str, account_id: str) -> Json:
        async with desk.changing(request) as visit:
            for account in await visit.rows.accounts(project_id):
                if account.id == account_id:
                    break
            else:
                raise ResourceNotFound("no service account of this id")
            account.deleted_at = visit.now
            for key in await visit.rows.keys(project_id):
                if key.service_account_id == account_id:
                    key.revoked_at = visit.now
            await visit.note("service_account.deleted", account_id, project_id)
            kind = "organization.project.service_account.deleted"
            return {"id": account_id, "deleted": True, "object": kind}


def _add_admin_keys(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/admin_api_keys")
    async def list_admin_keys(request: Request, after: str | None = None, limit: int = 20) -> Json:
        async with desk.reading(request) as visit:
            rows = await visit.rows.keys(None)
            return page([shapes.admin_key(row) for row in rows], after, limit)

    @router.post(ROOT + "/admin_api_keys")
    async def create_admin_key(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            service = IdentityService(visit.session, visit.now)
            terms = _terms(body, visit)
            key = service.issue_admin_of(visit.who.organisation, terms, peppers=desk.peppers)
            await visit.session.flush()
            await visit.note("api_key.created", key.id)
            return {**shapes.admin_key(await _key(visit, None, key.id)), "value": key.text}

    @router.delete(ROOT + "/admin_api_keys/{key_id}")
    async def delete_admin_key(request: Request, key_id: str) -> Json:
        async with desk.changing(request) as visit:
            (await _key(visit, None, key_id)).revoked_at = visit.now
            await visit.note("api_key.deleted", key_id)
            kind = "organization.admin_api_key.deleted"
            return {"id": key_id, "deleted": True, "object": kind}


def _add_limits(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ONE + "/rate_limits")
    async def list_rates(
        request: Request, project_id: str, after: str | None = None, limit: int = 100
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            subject = Subject(Level.PROJECT, project_id, desk.base_model)
            rows = [_rates(desk.base_model, await service.rates(subject))]
            return page(rows, after, limit)

    @router.post(ONE + "/rate_limits/{rate_limit_id}")
    async def change_rates(request: Request, project_id: str, rate_limit_id: str) -> Json:
        body = await body_of(request)
        model = rate_limit_id.removeprefix("rl-")
        async with desk.changing(request) as visit:
            await visit.project(project_id)
            if model != desk.base_model:
                raise ResourceNotFound("no rate limit of this id")
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            subject = Subject(Level.PROJECT, project_id, model)
            given = {ours: integer_of(body, theirs) for theirs, ours in RATES.items()}
            rates = Rates(**given).over(await service.rates(subject))
            await service.set_rates(subject, rates)
            await visit.note(
                "rate_limit.updated", rate_limit_id, project_id, changes_requested=body
            )
            return _rates(model, rates)

    for path, level in ((ROOT + "/spend_limit", Level.ORGANISATION),
                        (ONE + "/spend_limit", Level.PROJECT)):  # fmt: skip
        _add_spend_limit(router, desk, path, level)


def _add_spend_limit(router: APIRouter, desk: AdminDesk, path: str, level: Level) -> None:
    kind = f"{'organization' if level is Level.ORGANISATION else 'project'}.spend_limit"

    async def subject_of(visit: Visit, project_id: str | None) -> Subject:
        if project_id is None:
            return Subject(level, visit.who.organisation)
        return Subject(level, (await visit.project(project_id)).id)

    @router.get(path)
    async def retrieve(request: Request) -> Json:
        async with desk.reading(request) as visit:
            subject = await subject_of(visit, request.path_params.get("project_id"))
            rows = LimitRepository(visit.session, visit.who.organisation)
            row = await rows.budget(subject, MONTH)
            if row is None:
                raise ResourceNotFound("no spend limit is set")
            return _spend_limit(kind, row.amount_nano)

    @router.post(path)
    async def change(request: Request) -> Json:
        body, project_id = await body_of(request), request.path_params.get("project_id")
        async with desk.changing(request) as visit:
            subject, amount = await subject_of(visit, project_id), threshold_of(body)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            await service.set_budget(subject, MONTH, amount)
            await visit.note(f"{kind}.updated", subject.id, project_id, nano_usd=amount)
            return _spend_limit(kind, amount)

    @router.delete(path)
    async def remove(request: Request) -> Json:
        project_id = request.path_params.get("project_id")
        async with desk.changing(request) as visit:
            subject = await subject_of(visit, project_id)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            removed = await service.remove_budget(subject, MONTH)
            await visit.note(f"{kind}.deleted", subject.id, project_id)
            return {"deleted": removed, "object": f"{kind}.deleted"}


def _add_audit(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/audit_logs")
    async def list_audit(request: Request, after: str | None = None, limit: int = 20) -> Json:
        async with desk.reading(request) as visit:
            rows = await AuditRepository(visit.session, visit.who.organisation).newest_first()
            return page([shapes.audit(row) for row in rows], after, limit)


async def _key(visit: Visit, project: str | None, key_id: str) -> ApiKey:
    for row in await visit.rows.keys(project):
        if row.id == key_id:
            return row
    raise ResourceNotFound("no key of this id")


def _terms(body: Json, visit: Visit) -> KeyTerms:
    seconds = integer_of(body, "expires_in_seconds")
    if seconds is not None and not 0 < seconds < 10**10:
        raise InvalidRequest("expires_in_seconds must be positive", param="expires_in_seconds")
    expires_at = visit.now + timedelta(seconds=seconds) if seconds else None
    return KeyTerms(name=text_of(body, "name"), expires_at=expires_at)


def _rates(model: str, rates: Rates) -> Json:
    shown = {theirs: getattr(rates, ours) for theirs, ours in RATES.items()}
    for name in ("max_requests_per_1_minute", "max_tokens_per_1_minute"):
        shown[name] = NO_LIMIT if shown[name] is None else shown[name]
    return {"id": f"rl-{model}", "object": "project.rate_limit", "model": model, **shown}


def _spend_limit(kind: str, nano: int) -> Json:
    return {
        "object": kind,
        **amount_shown(nano),
        "enforcement": {"status": "enforcing"},
    }
