"""``…/rate_limits`` and ``…/spend_limit``."""

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.desk import AdminDesk, Visit, body_of, integer_of, tell_ignored
from gateway.admin.money import THRESHOLD, amount_shown, threshold_of
from gateway.admin.paths import ONE, ROOT
from gateway.admin.shapes import NO_LIMIT, Json, page
from gateway.catalog.models import AdapterState
from gateway.catalog.repository import AdapterRepository
from gateway.errors import ResourceNotFound
from gateway.identity.rights import Right
from gateway.limits.models import Level
from gateway.limits.period import MONTH
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Rates, Subject
from gateway.limits.service import MOST, LimitService

RATES = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "max_requests_per_1_day": "requests_per_day",
    "max_tokens_per_1_day": "tokens_per_day",
    "max_concurrent_requests": "concurrency",
}
BY_THE_MINUTE = ("max_requests_per_1_minute", "max_tokens_per_1_minute")  # OpenAI always shows them
SHOWN = ("id", "object", "model", "enforcement")  # of a limit, beside what may be changed


def add_limits(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ONE + "/rate_limits", **desk.needs(Right.READ))
    async def list_rates(
        request: Request, project_id: str, after: str | None = None, limit: int = 100
    ) -> Json:
        async with desk.reading(request) as visit:
            await visit.project(project_id)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            rows = [
                _rates(model, await service.rates(Subject(Level.PROJECT, project_id, model)))
                for model in await _models(desk, visit, project_id)
            ]
            return page(rows, after, limit)

    @router.post(ONE + "/rate_limits/{rate_limit_id:path}", **desk.needs(Right.RATES))
    async def change_rates(
        request: Request, response: Response, project_id: str, rate_limit_id: str
    ) -> Json:
        body = await body_of(request)
        tell_ignored(response, body, (*RATES, *SHOWN))
        model = rate_limit_id.removeprefix("rl-")
        async with desk.changing(request) as visit:
            await visit.project(project_id)
            if model not in await _models(desk, visit, project_id):
                raise ResourceNotFound("no rate limit of this id")
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            subject = Subject(Level.PROJECT, project_id, model)
            asked = _asked(body)
            changed = {RATES[name]: value for name, value in asked.items()}
            rates = replace(await service.rates(subject), **changed)
            await service.set_rates(subject, rates)
            await visit.note(
                "rate_limit.updated", rate_limit_id, project_id, changes_requested=asked
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

    @router.get(path, **desk.needs(Right.READ))
    async def retrieve(request: Request) -> Json:
        async with desk.reading(request) as visit:
            subject = await subject_of(visit, request.path_params.get("project_id"))
            rows = LimitRepository(visit.session, visit.who.organisation)
            row = await rows.budget(subject, MONTH)
            if row is None:
                raise ResourceNotFound("no spend limit is set")
            return _spend_limit(kind, row.amount_nano)

    @router.post(path, **desk.needs(Right.SPENDING))
    async def change(request: Request, response: Response) -> Json:
        body, project_id = await body_of(request), request.path_params.get("project_id")
        tell_ignored(response, body, (*THRESHOLD, *SHOWN))
        async with desk.changing(request) as visit:
            subject, amount = await subject_of(visit, project_id), threshold_of(body)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            await service.set_budget(subject, MONTH, amount, **await _terms(visit, subject))
            await visit.note(f"{kind}.updated", subject.id, project_id, nano_usd=amount)
            return _spend_limit(kind, amount)

    @router.delete(path, **desk.needs(Right.SPENDING))
    async def remove(request: Request) -> Json:
        project_id = request.path_params.get("project_id")
        async with desk.changing(request) as visit:
            subject = await subject_of(visit, project_id)
            service = LimitService(visit.session, visit.who.organisation, visit.now)
            removed = await service.remove_budget(subject, MONTH)
            await visit.note(f"{kind}.deleted", subject.id, project_id)
            return {"deleted": removed, "object": f"{kind}.deleted"}


async def _terms(visit: Visit, subject: Subject) -> dict[str, str]:
    """What a new amount leaves as it is: nothing here says another zone, or another end."""
    row = await LimitRepository(visit.session, visit.who.organisation).budget(subject, MONTH)
    return {} if row is None else {"time_zone": row.time_zone, "on_exhaust": row.on_exhaust}


async def _models(desk: AdminDesk, visit: Visit, project_id: str) -> list[str]:
    """What a project's rates may be for: the bases, and each of its adapters."""
    rows = await AdapterRepository(visit.session, project_id).all()
    return [*desk.bases, *dict.fromkeys(r.name for r in rows if r.state == AdapterState.READY)]


def _asked(body: Json) -> dict[str, int | None]:
    """What is said of each rate; null, and what is shown for none, takes the limit away.

    Raises InvalidRequest.
    """
    asked = {name: integer_of(body, name, range(MOST + 1)) for name in RATES if name in body}
    for name in BY_THE_MINUTE:
        if asked.get(name) == NO_LIMIT:
            asked[name] = None
    return asked


def _rates(model: str, rates: Rates) -> Json:
    shown = {theirs: getattr(rates, ours) for theirs, ours in RATES.items()}
    for name in BY_THE_MINUTE:
        shown[name] = NO_LIMIT if shown[name] is None else shown[name]
    return {"id": f"rl-{model}", "object": "project.rate_limit", "model": model, **shown}


def _spend_limit(kind: str, nano: int) -> Json:
    return {
        "object": kind,
        **amount_shown(nano),
        "enforcement": {"status": "enforcing"},
    }
