"""Who administers, and the transaction in which it is done: the change, its audit, the epoch."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import Response

from gateway.audit.service import Actor, AuditLog
from gateway.db import Database, Tenancy
from gateway.errors import (
    InvalidRequest,
    PermissionDenied,
    ResourceNotFound,
    Unauthenticated,
)
from gateway.http import Request as RawRequest
from gateway.http import listed
from gateway.identity.models import Project, Role
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.pepper import Peppers
from gateway.identity.principal import Principal
from gateway.identity.rights import Right, require
from gateway.inference.body import parse_object

MOST_BODY_BYTES = 1 << 16
Recognise = Callable[[str], Awaitable[Principal]]  # by an API key; raises Unauthenticated


class Visit:
    """One administrator's request. ``rows`` sees their organisation alone."""

    def __init__(self, session: AsyncSession, who: Principal) -> None:
        self.session, self.who = session, who
        self.now = datetime.now(UTC)
        self.rows = OrganisationRepository(session, who.organisation)

    async def project(self, project_id: str) -> Project:
        """A live or archived one. Raises ResourceNotFound, also for another organisation's."""
        for row in await self.rows.projects(archived=True):
            if row.id == project_id:
                return row
        raise ResourceNotFound("no project of this id")

    async def note(
        self, kind: str, object_id: str, project: str | None = None, **change: Any
    ) -> None:
        log = AuditLog(self.session, self.who.organisation, self.now)
        actor = Actor("api_key", self.who.key)
        await log.add(kind, object_id, actor=actor, project=project, change=change)


class AdminDesk:
    """Admin keys alone come in; other keys get 403, and none or a wrong one 401."""

    def __init__(
        self,
        database: Database,
        recognise: Recognise,
        peppers: Peppers,
        *,
        bases: Sequence[str],
        operator: str | None = None,
    ) -> None:
        """``operator``: the organisation that runs this server, by name; None: none does."""
        self._database = database
        self._operator = operator
        self._recognise = recognise
        self.peppers = peppers
        self.bases = bases  # served names

    def needs(self, right: Right, *, secret: bool = False) -> dict[str, Any]:
        """What a route's decorator takes, so that nothing of a request is read before its key.

        The description of the API names the right. ``secret``: nobody may keep the answer.
        """

        async def admit(request: Request, response: Response) -> None:
            await self._admit(request, right)
            if secret:
                response.headers["cache-control"] = "no-store"

        return {"dependencies": [Depends(admit)], "openapi_extra": {"x-right": str(right)}}

    async def _admit(self, request: Request, right: Right) -> None:
        """Raises Unauthenticated, PermissionDenied, or InvalidRequest for more than one key."""
        values = request.headers.getlist("authorization")
        if len(values) > 1:
            raise InvalidRequest("Send one Authorization header, not several.")
        scheme, _, key = (values[0] if values else "").strip().partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated
        who = await self._recognise(key.strip())
        if not who.admin:
            raise PermissionDenied("Only admin keys administer an organisation.")
        require(who, right, request.path_params.get("project_id"))
        request.state.administrator = who

    @asynccontextmanager
    async def reading(self, request: Request) -> AsyncIterator[Visit]:
        who: Principal = request.state.administrator
        async with self._database.reading(within=Tenancy(who.organisation)) as session:
            yield Visit(session, who)

    @asynccontextmanager
    async def changing(self, request: Request) -> AsyncIterator[Visit]:
        who: Principal = request.state.administrator
        async with self._database.publish(within=Tenancy(who.organisation)) as session:
            yield Visit(session, who)

    @asynccontextmanager
    async def granting(self, request: Request, organisation: str | None) -> AsyncIterator[Visit]:
        """A visit to any organisation by the operator's own. Raises PermissionDenied for others,
        whatever there is; then ResourceNotFound."""
        who: Principal = request.state.administrator
        async with self._database.publish() as session:
            own = await OrganisationRepository(session, who.organisation).own()
            if self._operator is None or own is None or own.name != self._operator:
                raise PermissionDenied("Only the operator of this server grants credit.")
            visit = Visit(session, replace(who, organisation=organisation or who.organisation))
            if await visit.rows.own() is None:
                raise ResourceNotFound("no organisation of this id", param="organization_id")
            yield visit


async def body_of(request: Request) -> dict[str, Any]:
    """A JSON object, empty where there is no body. Raises as ``json_body`` and ``parse_object``."""
    raw = await RawRequest(request.scope, request.receive).json_body(MOST_BODY_BYTES)
    return parse_object(raw) if raw else {}


def text_of(body: dict[str, Any], name: str) -> str:
    if not isinstance(value := body.get(name), str):
        raise InvalidRequest(f"{name} must be a string", param=name)
    return value


def integer_of(body: dict[str, Any], name: str, limits: range | None = None) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if value is not None and limits is not None and value not in limits:
        raise InvalidRequest(
            f"{name} {value}: from {limits.start} to {limits.stop - 1}", param=name
        )
    return value


def tell_ignored(response: Response, body: dict[str, Any], known: Collection[str]) -> None:
    """What is passed over is named, as in answers of inference: it may be a limit misspelt."""
    ignored = sorted(
        name for name, value in body.items() if value is not None and name not in known
    )
    if ignored:
        response.headers["x-ignored-params"] = listed(tuple(ignored))


def role_in(body: dict[str, Any]) -> Role:
    """OpenAI's words for roles are taken too. Raises InvalidRequest."""
    given = text_of(body, "role")
    named = {"reader": Role.VIEWER, "member": Role.DEVELOPER}.get(given, given)
    if named not in tuple(Role):
        raise InvalidRequest(f"role {given[:32]!r}: one of {', '.join(Role)}", param="role")
    return Role(named)
