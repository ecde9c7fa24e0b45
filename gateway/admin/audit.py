"""``/audit_logs``: every change, newest first."""

import re
from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk
from gateway.admin.paths import ROOT
from gateway.admin.shapes import Json
from gateway.audit.repository import AuditFilter, AuditRepository
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.identity.rights import Right

LISTS = {
    "event_types": "type",
    "project_ids": "project_id",
    "actor_ids": "actor_id",
    "resource_ids": "object_id",
}
TIMES = {f"effective_at[{name}]": name for name in ("gt", "gte", "lt", "lte")}
CURSORS = ("after", "before", "limit")


def add_audit(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/audit_logs", **desk.needs(Right.AUDIT))
    async def list_audit(
        request: Request, after: str | None = None, before: str | None = None, limit: int = 20
    ) -> Json:
        wanted = _wanted(request.query_params.multi_items())
        if not 1 <= limit <= 100:
            raise InvalidRequest(f"limit {limit}: from 1 to 100", param="limit")
        async with desk.reading(request) as visit:
            log = AuditRepository(visit.session, visit.who.organisation)
            numbers = dict[str, int]()
            for name, cursor in (("after", after), ("before", before)):
                if cursor is not None and (event := await log.event(cursor)) is None:
                    raise InvalidRequest(f"{name} names no event", param=name)
                if cursor is not None and event is not None:
                    numbers[name] = event.number
            found = await log.newest_first(limit + 1, wanted, **numbers)
            kept = found[:limit] if before is None else found[-limit:]
            data = [shapes.audit(row) for row in kept]
            return {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": len(found) > limit,
            }


def _wanted(params: list[tuple[str, str]]) -> AuditFilter:
    """Raises InvalidRequest: a filter that is not known would show what nobody asked for."""
    values: dict[str, list[str]] = {}
    times: dict[str, datetime] = {}
    for written, text in params:
        name = written.removesuffix("[]")
        if name in LISTS:
            values.setdefault(LISTS[name], []).append(text)
        elif written in TIMES:
            if re.fullmatch(r"\d{1,11}", text, re.ASCII) is None:
                raise InvalidRequest("effective_at: seconds since 1970", param=written)
            times[TIMES[written]] = datetime.fromtimestamp(int(text), UTC)
        elif written not in CURSORS:
            raise UnsupportedParameter(f"Unknown parameter {written[:64]!r}.", param=written[:64])
    return AuditFilter(values, times)
