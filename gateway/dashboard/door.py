"""Who comes in: signing in and out, one's own password and browsers, and preferences."""

from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.dashboard.arrivals import Arrivals
from gateway.dashboard.cookies import THEME, ZONE, Cookies
from gateway.dashboard.form import read_form
from gateway.dashboard.frame import FIRST, THEMES, Frame, address_of, inside
from gateway.dashboard.oidc_door import OidcDoor
from gateway.dashboard.timespan import zone_named
from gateway.dashboard.visit import ROOT, Form
from gateway.errors import GatewayError, RouteNotFound, Unavailable
from gateway.identity.logins import Logins
from gateway.identity.oidc_provider import Provider
from gateway.identity.viewer import Viewer

NO_PAGE = "There is no such page."
SIGN_IN, ACCOUNT = "/sign-in", "/account"


class Door:
    def __init__(
        self,
        logins: Logins,
        cookies: Cookies,
        frame: Frame,
        *,
        forwarded_hops: int,
        arrivals: Arrivals | None = None,
        provider: Provider | None = None,
    ) -> None:
        """``arrivals`` and ``provider``: of the sign-in service, where there is one."""
        self._oidc = None
        if arrivals is not None and provider is not None:
            self._oidc = OidcDoor(provider, arrivals, cookies, self._sign_in_page)
        self._logins = logins
        self._cookies = cookies
        self._frame = frame
        self._hops = forwarded_hops

    def routes(self) -> list[Route]:
        return [
            *(self._oidc.routes() if self._oidc else ()),
            Route(SIGN_IN, self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/preferences", self._prefer, methods=["POST"]),
            Route(f"{ACCOUNT}/password", self._change_password, methods=["POST"]),
            Route(f"{ACCOUNT}/browsers", self._end_others, methods=["POST"]),
        ]

    async def viewer(self, request: Request) -> Viewer | None:
        cookie = self._cookies.sign_in(request)
        return await self._logins.viewer(cookie) if cookie else None

    def ask_in(self, request: Request) -> Response:
        """To the sign-in page, and from there back to where one was going."""
        if "hx-request" in request.headers:  # a part of a page: the whole page must go there
            return Response(status_code=HTTPStatus.OK, headers={"hx-refresh": "true"})
        target = address_of(request) if request.method in ("GET", "HEAD") else FIRST
        asked = "" if target == FIRST else f"?next={quote(target, safe='')}"
        return RedirectResponse(f"{ROOT}{SIGN_IN}{asked}", HTTPStatus.SEE_OTHER)

    async def _sign_in(self, request: Request) -> Response:
        target = inside(request.query_params.get("next", ""))
        if request.method != "POST":
            if await self.viewer(request) is not None:
                return RedirectResponse(target, HTTPStatus.SEE_OTHER)
            return self._sign_in_page(request, target)
        self._cookies.require_own_page(request)
        form = await read_form(request)
        target = inside(form.get("next", ""))
        try:
            cookie = await self._logins.sign_in(
                form.get("email", ""),
                form.get("password", ""),
                address=self._client(request),
                browser=request.headers.get("user-agent", ""),
            )
        except GatewayError as error:
            return self._sign_in_page(request, target, error, form)
        if known := self._cookies.sign_in(request):  # somebody else's, on this browser
            await self._logins.sign_out(known)
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        self._cookies.set_sign_in(request, response, cookie)
        return response

    def _sign_in_page(
        self,
        request: Request,
        target: str,
        error: GatewayError | None = None,
        form: Form | None = None,
    ) -> Response:
        sso = self._oidc.name if self._oidc else ""
        content = {"next": target, "error": error, "form": form or {}, "sso": sso}
        status = error.status if error else HTTPStatus.OK
        answer = self._frame.answer(request, "sign_in.html", content, status=status)
        if error is not None:
            answer.headers.update(error.headers())
        return answer

    async def _sign_out(self, request: Request) -> Response:
        await self._own_form(request)
        await self._logins.sign_out(self._cookies.sign_in(request))
        response = RedirectResponse(ROOT + SIGN_IN, HTTPStatus.SEE_OTHER)
        self._cookies.end_sign_in(request, response)
        return response

    async def _prefer(self, request: Request) -> Response:
        """Zone and colours: of the browser, so cookies keep them."""
        self._cookies.require_own_page(request)
        form = await read_form(request)
        response = RedirectResponse(inside(form.get("next", "")), HTTPStatus.SEE_OTHER)
        if "zone" in form:
            zone = zone_named(form["zone"])
            self._cookies.remember(request, response, ZONE, quote(zone.key))
        if form.get("theme") in THEMES:
            self._cookies.remember(request, response, THEME, form["theme"])
        return response

    async def _change_password(self, request: Request) -> Response:
        form = await self._own_form(request)
        if (viewer := await self.viewer(request)) is None:
            return self.ask_in(request)
        if form.get("new") != form.get("again"):
            return self._to_account(request, "The two new passwords are not the same.", wrong=True)
        try:
            await self._logins.change_password(
                viewer, self._cookies.sign_in(request), form.get("old", ""), form.get("new", "")
            )
        except GatewayError as error:
            return self._to_account(request, error.message, wrong=True)
        return self._to_account(request, "Your password is changed; other browsers are signed out.")

    async def _end_others(self, request: Request) -> Response:
        await self._own_form(request)
        if (viewer := await self.viewer(request)) is None:
            return self.ask_in(request)
        await self._logins.end_others(viewer, self._cookies.sign_in(request))
        return self._to_account(request, "All other browsers are signed out.")

    def _to_account(self, request: Request, said: str, *, wrong: bool = False) -> Response:
        return self._frame.done(request, ROOT + ACCOUNT, said, wrong=wrong)

    async def _own_form(self, request: Request) -> Form:
        """Raises PermissionDenied."""
        self._cookies.require_own_page(request)
        form = await read_form(request)
        self._cookies.require_token(request, form.get("csrf", ""))
        return form

    def _client(self, request: Request) -> str:
        """The browser's address, as our own proxies saw it."""
        if self._hops == 0:
            return request.client.host if request.client else ""
        said = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        return said[-self._hops].strip() if len(said) >= self._hops else ""


def told(error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    return Unavailable("The database does not answer; try again later.", retry_after=1.0)


def organisation_of(request: Request, viewer: Viewer) -> str:
    """Raises RouteNotFound for another organisation's page, whether there is one or not."""
    asked = request.query_params.get("org", "")
    if viewer.is_operator:
        return asked
    if asked not in ("", viewer.organisation):
        raise RouteNotFound(NO_PAGE)
    return viewer.organisation
