"""``/dashboard/adapters/uploads``: what the page of adapters does with files, part by part.

The same desk as ``/v1/adapters`` answers; who asks is known by the sign-in, and each change must
come from our own page with its form's token. Answers and errors are JSON: a script reads them.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapter_api.callers import Caller
from gateway.adapter_api.forms import CompleteUpload, CreateUpload
from gateway.adapter_api.uploads import UploadDesk
from gateway.audit.service import Actor, AuditLog
from gateway.dashboard.cookies import Cookies
from gateway.dashboard.door import Door, organisation_of, told
from gateway.dashboard.form import read_body
from gateway.db import Database, DatabaseUnavailable, Tenancy
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    ResourceNotFound,
    SignInRefused,
)
from gateway.http import ClientGone
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.rights import Right, require

PATH = "/adapters/uploads"
TOKEN = "x-form-token"  # noqa: S105
MOST_FORM = 16 << 10
CLIENT_GONE = 499
Json = dict[str, Any]
Form = TypeVar("Form", bound=BaseModel)
Work = Callable[[Request, Caller], Awaitable[Json]]


class Uploads:
    """Belongs to one event loop."""

    def __init__(self, database: Database, desk: UploadDesk, door: Door, cookies: Cookies) -> None:
        self._database, self._desk = database, desk
        self._door, self._cookies = door, cookies

    def routes(self) -> list[Route]:
        one = f"{PATH}/{{upload}}"
        return [
            Route(PATH, self._telling(self._begin), methods=["POST"]),
            Route(one, self._telling(self._status), methods=["GET"]),
            Route(one, self._telling(self._give_up), methods=["DELETE"]),
            Route(f"{one}/complete", self._telling(self._complete), methods=["POST"]),
            Route(f"{one}/{{file}}/{{part:int}}", self._telling(self._write), methods=["PUT"]),
        ]

    def _telling(self, work: Work) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                found = await work(request, await self._caller(request))
            except ClientGone:
                return Response(status_code=CLIENT_GONE)
            except (GatewayError, DatabaseUnavailable) as error:
                failure = told(error)
                return JSONResponse(failure.body(), failure.status, failure.headers())
            return JSONResponse(found, headers={"cache-control": "no-store"})

        return answer

    async def _caller(self, request: Request) -> Caller:
        """Raises SignInRefused, PermissionDenied, ResourceNotFound."""
        self._cookies.require_own_page(request)
        self._cookies.require_token(request, request.headers.get(TOKEN, ""))
        viewer = await self._door.viewer(request)
        if viewer is None:
            raise SignInRefused("You are signed out: load the page again.")
        organisation = organisation_of(request, viewer)
        project = request.query_params.get("project", "")
        async with self._database.reading(within=Tenancy(organisation)) as session:
            rows = await OrganisationRepository(session, organisation).projects()
        if not organisation or all(row.id != project for row in rows):
            raise ResourceNotFound("no project of this id", param="project")
        who = viewer.acting_in(organisation)
        require(who, Right.ADAPTERS, project)
        return Caller(who, project)

    async def _begin(self, request: Request, who: Caller) -> Json:
        return await self._desk.begin(await _form(request, CreateUpload), who)

    async def _status(self, request: Request, who: Caller) -> Json:
        return await self._desk.status(request.path_params["upload"], who)

    async def _give_up(self, request: Request, who: Caller) -> Json:
        await self._desk.abort(request.path_params["upload"], who)
        return {}

    async def _write(self, request: Request, who: Caller) -> Json:
        asked = request.path_params
        place = asked["upload"], asked["file"], asked["part"]
        return await self._desk.write_part(request, who, place)

    async def _complete(self, request: Request, who: Caller) -> Json:
        form = await _form(request, CompleteUpload)
        upload = request.path_params["upload"]
        found = await self._desk.complete(upload, form, who, Response())
        async with self._database.unit_of_work(within=Tenancy(who.principal.organisation)) as each:
            log = AuditLog(each, who.principal.organisation, datetime.now(UTC))
            await log.add(
                "adapter.created", found.get("model") or upload,
                actor=Actor("login", who.principal.key), project=who.project,
                change={"digest": found.get("digest"), "rank": found.get("rank")},
            )  # fmt: skip
        return found


async def _form(request: Request, kind: type[Form]) -> Form:
    """Raises InvalidRequest that names the field, BodyTooLarge."""
    body = await read_body(request, MOST_FORM)
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "body"
        raise InvalidRequest(f"{name}: {first['msg']}", param=name) from error
