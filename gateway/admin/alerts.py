"""``…/spend_alerts``: who is told when so much was spent in a month."""

import re

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin.desk import AdminDesk, Visit, body_of
from gateway.admin.money import amount_shown, threshold_of
from gateway.admin.shapes import Json, page
from gateway.errors import InvalidRequest, MissingParameter, ResourceNotFound
from gateway.identity.rights import Right
from gateway.ids import new_id
from gateway.limits.models import SpendAlert
from gateway.limits.repository import LimitRepository

MOST_ALERTS = 100  # of an organisation as a whole, and of each project
MOST_RECIPIENTS = 20
MOST_PREFIX = 128
_ADDRESS = re.compile(r"[\x21-\x7e]{1,64}@[\x21-\x7e]{1,189}", re.ASCII)


def add_alerts(router: APIRouter, desk: AdminDesk, path: str, kind: str) -> None:
    """``kind``: the object's name; a path of a project's names it."""

    @router.get(path, **desk.needs(Right.READ))
    async def list_alerts(
        request: Request,
        after: str | None = None,
        before: str | None = None,
        limit: int = 20,
        order: str = "asc",
    ) -> Json:
        async with desk.reading(request) as visit:
            rows = await _rows(visit).alerts(await _project(visit, request))
            shown = [_shown(kind, row) for row in rows]
            return page(shown, after, limit, before=before, order=order)

    @router.post(path, **desk.needs(Right.SPENDING))
    async def create_alert(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            project = await _project(visit, request)
            if len(await _rows(visit).alerts(project)) >= MOST_ALERTS:
                raise InvalidRequest(f"there are {MOST_ALERTS} spend alerts: delete one first")
            row = SpendAlert(
                id=new_id("alert"),
                organisation_id=visit.who.organisation,
                project_id=project,
                created_at=visit.now,
            )
            _fill(row, body)
            _rows(visit).add(row)
            await visit.note(f"{kind}.created", row.id, project, nano_usd=row.threshold_nano)
            return _shown(kind, row)

    @router.get(path + "/{alert_id}", **desk.needs(Right.READ))
    async def retrieve_alert(request: Request, alert_id: str) -> Json:
        async with desk.reading(request) as visit:
            return _shown(kind, await _alert(visit, request, alert_id))

    @router.post(path + "/{alert_id}", **desk.needs(Right.SPENDING))
    async def change_alert(request: Request, alert_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            row = await _alert(visit, request, alert_id)
            before = row.threshold_nano
            _fill(row, body)
            change = {"nano_usd": row.threshold_nano, "before_nano_usd": before}
            await visit.note(f"{kind}.updated", row.id, row.project_id, **change)
            return _shown(kind, row)

    @router.delete(path + "/{alert_id}", **desk.needs(Right.SPENDING))
    async def delete_alert(request: Request, alert_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await _alert(visit, request, alert_id)
            await _rows(visit).forget_deliveries(row.id)
            await _rows(visit).remove(row)
            await visit.note(f"{kind}.deleted", row.id, row.project_id)
            return {"id": row.id, "deleted": True, "object": f"{kind}.deleted"}


def _rows(visit: Visit) -> LimitRepository:
    return LimitRepository(visit.session, visit.who.organisation)


async def _project(visit: Visit, request: Request) -> str | None:
    """None: alerts of the whole organisation. Raises ResourceNotFound."""
    project_id: str | None = request.path_params.get("project_id")
    return None if project_id is None else (await visit.project(project_id)).id


async def _alert(visit: Visit, request: Request, alert_id: str) -> SpendAlert:
    row = await _rows(visit).alert(alert_id, await _project(visit, request))
    if row is None:
        raise ResourceNotFound("no spend alert of this id")
    return row


def _fill(row: SpendAlert, body: Json) -> None:
    """Raises InvalidRequest."""
    row.threshold_nano = threshold_of(body, least=1)
    channel = body.get("notification_channel")
    if not isinstance(channel, dict):
        raise MissingParameter("notification_channel must be given", param="notification_channel")
    if channel.get("type", "email") != "email":
        raise InvalidRequest("notification_channel.type must be 'email'",
                             param="notification_channel.type")  # fmt: skip
    row.recipients = "\n".join(recipients_of(channel.get("recipients")))
    prefix = channel.get("subject_prefix")
    if prefix is not None and not (
        isinstance(prefix, str) and len(prefix) <= MOST_PREFIX and prefix.isprintable()
    ):
        raise InvalidRequest(
            f"notification_channel.subject_prefix: at most {MOST_PREFIX} printable characters",
            param="notification_channel.subject_prefix",
        )
    row.subject_prefix = prefix


def recipients_of(given: object) -> list[str]:
    where = "notification_channel.recipients"
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_RECIPIENTS:
        raise InvalidRequest(f"{where}: a list of 1 to {MOST_RECIPIENTS} addresses", param=where)
    for number, address in enumerate(given):
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            raise InvalidRequest(
                f"{where}[{number}] is not an e-mail address", param=f"{where}[{number}]"
            )
    text = list(dict.fromkeys(given))
    if sum(len(address) + 1 for address in text) > 2048:  # the column
        raise InvalidRequest(f"{where}: together at most 2048 characters", param=where)
    return text


def _shown(kind: str, row: SpendAlert) -> Json:
    return {
        "id": row.id,
        "object": kind,
        **amount_shown(row.threshold_nano),
        "notification_channel": {
            "type": "email",
            "recipients": row.recipients.split("\n"),
            "subject_prefix": row.subject_prefix,
        },
    }
