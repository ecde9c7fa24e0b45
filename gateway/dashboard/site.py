"""The dashboard as an application of its own: who looks, at which page, and errors as pages.

Each GET reads one consistent view of the database, as the tenant whose page it is. A POST is an
action: our own form, of this sign-in, by somebody with the right; one transaction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from sqlalchemy.ext.asyncio import AsyncSession
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.adapter_api.uploads import UploadDesk
from gateway.dashboard.arrivals import Arrivals
from gateway.dashboard.assets import Assets
from gateway.dashboard.cookies import Cookies
from gateway.dashboard.door import NO_PAGE, Door, organisation_of, told
from gateway.dashboard.form import read_form
from gateway.dashboard.frame import Frame, zone_of
from gateway.dashboard.page import Done, Outcome, Page
from gateway.dashboard.pages import PAGES
from gateway.dashboard.rendering import HEADERS, Rendering
from gateway.dashboard.sources import Sources
from gateway.dashboard.uploads import Uploads
from gateway.dashboard.visit import ROOT, Form, Visit
from gateway.db import Database, DatabaseUnavailable, Tenancy
from gateway.errors import GatewayError, InvalidRequest, PermissionDenied, RouteNotFound
from gateway.identity.login_repository import LoginRepository
from gateway.identity.logins import Logins
from gateway.identity.oidc_provider import Provider
from gateway.identity.viewer import Viewer

NEVER_AGAIN = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Call:
    """A request for a page, by somebody who may see it."""

    request: Request
    page: Page
    viewer: Viewer
    organisation: str
    organisation_name: str


class Site:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        logins: Logins,
        sources: Sources,
        *,
        forwarded_hops: int = 0,
        provider: Provider | None = None,
        uploads: UploadDesk | None = None,
        pages: Sequence[Page] = PAGES,
    ) -> None:
        self._database = database
        self._sources = sources
        self._pages = pages
        self._assets = Assets()
        self._cookies = Cookies(behind_proxies=forwarded_hops > 0)
        self._frame = Frame(pages, self._cookies, Rendering(self._assets))
        self._door = Door(
            logins,
            self._cookies,
            self._frame,
            forwarded_hops=forwarded_hops,
            arrivals=Arrivals(database, logins, provider.settings) if provider else None,
            provider=provider,
        )

        self._uploads = None
        if uploads is not None:
            self._uploads = Uploads(database, uploads, self._door, self._cookies)

    def application(self) -> Starlette:
        """To be mounted at ``ROOT``."""
        failures = (GatewayError, DatabaseUnavailable, HTTPException)
        return Starlette(
            routes=[
                Route("/assets/{digest}/{name}", self._assets.answer),
                *self._door.routes(),
                *(self._uploads.routes() if self._uploads else ()),
                *(
                    Route(page.path or "/", self._serving(page), methods=["GET", "POST"])
                    for page in self._pages
                ),
            ],
            exception_handlers=dict.fromkeys(failures, self._as_page),
        )

    def _serving(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            if (viewer := await self._door.viewer(request)) is None:
                return self._door.ask_in(request)
            request.state.viewer = viewer
            if not page.is_for(viewer):
                raise PermissionDenied("This page is not for your role.")
            organisation = organisation_of(request, viewer)
            if page.of_one and not organisation:
                target = quote(f"{ROOT}{page.path}", safe="")
                return RedirectResponse(f"{ROOT}/organisations?for={target}", HTTPStatus.SEE_OTHER)
            name = viewer.organisation_name or await self._name_of(organisation)
            call = Call(request, page, viewer, organisation, name)
            return await (self._act(call) if request.method == "POST" else self._show(call, {}))

        return serve

    async def _show(self, call: Call, more: Mapping[str, Any]) -> Response:
        async with self._reading(call) as session:
            visit = self._visit(call, session)
            content = await call.page.show(visit)
            if isinstance(content, Response):
                for name, value in HEADERS.items():
                    content.headers.setdefault(name, value)
                return content
            error = more.get("error")
            return self._frame.answer(
                call.request,
                call.page.template,
                {**content, **more},
                viewer=call.viewer,
                page=call.page,
                visit=visit,
                status=error.status if error else HTTPStatus.OK,
            )

    async def _act(self, call: Call) -> Response:
        self._cookies.require_own_page(call.request)
        form = await read_form(call.request)
        self._cookies.require_token(call.request, form.get("csrf", ""))
        try:
            outcome, here = await self._run(call, form)
        except GatewayError as error:
            if error.status in NEVER_AGAIN:
                raise
            return await self._show(call, {"error": error, "form": form})
        if isinstance(outcome, Response):
            return outcome
        if isinstance(outcome, Done):
            return self._frame.done(call.request, outcome.href or here, outcome.said)
        return await self._show(call, outcome.more)

    async def _run(self, call: Call, form: Form) -> tuple[Outcome, str]:
        """What came of it, and the page's own address."""
        if (action := call.page.actions.get(form.get("action", ""))) is None:
            raise InvalidRequest("This page has no such action.", param="action")
        within = Tenancy(call.organisation) if call.organisation else None
        async with self._database.publish(within=within) as session:
            visit = self._visit(call, session)
            if action.right is not None:
                visit.require(action.right)
            return await action.run(visit, form), visit.here()

    def _reading(self, call: Call) -> AbstractAsyncContextManager[AsyncSession]:
        """A page about the viewer alone is of no tenant: operators are of none."""
        mine = call.page.is_personal or not call.organisation
        return self._database.reading(within=None if mine else Tenancy(call.organisation))

    def _visit(self, call: Call, session: AsyncSession) -> Visit:
        asked = call.request.query_params.items()
        return Visit(
            viewer=call.viewer,
            organisation=call.organisation,
            organisation_name=call.organisation_name,
            session=session,
            sources=self._sources,
            path=call.page.path,
            query={key: value for key, value in asked if key != "org"},
            zone=zone_of(call.request),
            now=datetime.now(UTC),
        )

    async def _name_of(self, organisation: str) -> str:
        """Raises RouteNotFound where there is none of this id."""
        if not organisation:
            return ""
        async with self._database.reading() as session:
            found = await LoginRepository(session).organisation_name(organisation)
        if found is None:
            raise RouteNotFound(NO_PAGE)
        return found

    async def _as_page(self, request: Request, error: Exception) -> Response:
        failure = RouteNotFound(NO_PAGE) if isinstance(error, HTTPException) else told(error)
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        content = {"failure": failure}
        answer = self._frame.answer(
            request, "failed.html", content, viewer=viewer, status=failure.status
        )
        answer.headers.update(failure.headers())
        return answer
