"""To the sign-in service and back: Authorization Code with PKCE.

What proves that it is the same browser that comes back (state), and that the token was made for it
(nonce, verifier), is in a cookie of ten minutes that only our pages can set; no server keeps it, so
any gateway may take the way back.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.dashboard.arrivals import Arrivals
from gateway.dashboard.cookies import Cookies
from gateway.dashboard.frame import FIRST, inside
from gateway.errors import GatewayError, SignInRefused
from gateway.identity.oidc_provider import Provider, told_error

OUT, BACK = "/sign-in/with", "/sign-in/return"
MOST_TARGET = 1000
Refuse = Callable[[Request, str, GatewayError], Response]


@dataclass(frozen=True, slots=True)
class Handshake:
    state: str
    nonce: str
    verifier: str
    target: str  # where somebody was going

    @classmethod
    def new(cls, target: str) -> "Handshake":
        target = target if len(target) <= MOST_TARGET else FIRST
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, target)

    def text(self) -> str:
        return ".".join((self.state, self.nonce, self.verifier, quote(self.target, safe="")))

    @classmethod
    def read(cls, text: str) -> "Handshake | None":
        parts = text.split(".", 3)
        if len(parts) != 4 or not all(parts[:3]):
            return None
        state, nonce, verifier, target = parts
        return cls(state, nonce, verifier, inside(unquote(target)))


class OidcDoor:
    def __init__(
        self, provider: Provider, arrivals: Arrivals, cookies: Cookies, refuse: Refuse
    ) -> None:
        """``refuse``: the sign-in page with what went wrong."""
        self.name = provider.settings.name
        self._provider, self._arrivals = provider, arrivals
        self._cookies, self._refuse = cookies, refuse

    def routes(self) -> list[Route]:
        return [Route(OUT, self._go, methods=["GET"]), Route(BACK, self._back, methods=["GET"])]

    async def _go(self, request: Request) -> Response:
        shake = Handshake.new(inside(request.query_params.get("next", "")))
        try:
            address = await self._provider.address(
                state=shake.state, nonce=shake.nonce, verifier=shake.verifier
            )
        except GatewayError as error:
            return self._refuse(request, shake.target, error)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        self._cookies.set_handshake(request, response, shake.text())
        response.headers["cache-control"] = "no-store"
        return response

    async def _back(self, request: Request) -> Response:
        shake = Handshake.read(self._cookies.handshake(request))
        target = shake.target if shake else FIRST
        try:
            cookie = await self._signed_in(request, shake)
        except GatewayError as error:
            response = self._refuse(request, target, error)
        else:
            response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
            self._cookies.set_sign_in(request, response, cookie)
        self._cookies.end_handshake(request, response)  # a code and a state are good for once
        response.headers["cache-control"] = "no-store"
        return response

    async def _signed_in(self, request: Request, shake: Handshake | None) -> str:
        """Raises GatewayError."""
        given = request.query_params
        if shake is None or not hmac.compare_digest(
            shake.state.encode(), given.get("state", "").encode()
        ):
            raise SignInRefused("This sign-in was not begun in this browser, or too long ago.")
        if given.get("iss", self._provider.settings.issuer) != self._provider.settings.issuer:
            raise SignInRefused("This sign-in comes from another service.")
        if "error" in given:
            raise told_error(given["error"])
        claims = await self._provider.claims(
            given.get("code", ""), nonce=shake.nonce, verifier=shake.verifier
        )
        browser = request.headers.get("user-agent", "")
        return await self._arrivals.arrive(claims, browser=browser)
