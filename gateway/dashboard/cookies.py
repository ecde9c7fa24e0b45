"""The cookie of a signed-in browser, and how a form proves that it is ours.

Over https the cookie has the ``__Host-`` prefix: no other host and no plain connection can set it.
A change is refused unless the browser says that it comes from our own page, and unless the form
carries a token that is derived from the cookie, which other pages cannot read.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import PermissionDenied
from gateway.identity.logins import LONGEST

SIGN_IN, HANDSHAKE, ZONE, THEME, SAID = (
    "loratorio-sign-in",
    "loratorio-handshake",
    "loratorio-zone",
    "loratorio-theme",
    "loratorio-said",
)
PATH = "/dashboard"
YEAR_S = 365 * 86400
SAID_S = 30
HANDSHAKE_S = 600


class Cookies:
    """``behind_proxies``: what they say of the client's connection is believed."""

    def __init__(self, *, behind_proxies: bool) -> None:
        self._behind_proxies = behind_proxies

    def sign_in(self, request: Request) -> str:
        return request.cookies.get(self._name(request, SIGN_IN), "")

    def set_sign_in(self, request: Request, response: Response, value: str) -> None:
        self._set(request, response, SIGN_IN, value, int(LONGEST.total_seconds()))

    def end_sign_in(self, request: Request, response: Response) -> None:
        self._end(request, response, SIGN_IN)

    def handshake(self, request: Request) -> str:
        """What this browser took along to the sign-in service."""
        return request.cookies.get(self._name(request, HANDSHAKE), "")

    def set_handshake(self, request: Request, response: Response, value: str) -> None:
        self._set(request, response, HANDSHAKE, value, HANDSHAKE_S)

    def end_handshake(self, request: Request, response: Response) -> None:
        self._end(request, response, HANDSHAKE)

    def remember(self, request: Request, response: Response, name: str, value: str) -> None:
        """A preference, or for a moment what was done."""
        response.set_cookie(
            name,
            value,
            max_age=SAID_S if name == SAID else YEAR_S,
            path=PATH,
            secure=self._is_secure(request),
            httponly=True,
            samesite="lax",
        )

    def require_own_page(self, request: Request) -> None:
        """Raises PermissionDenied where a request may come from another site's page."""
        site = request.headers.get("sec-fetch-site")
        if site is None:
            origin = urlsplit(request.headers.get("origin", ""))
            site = "same-origin" if origin.netloc and origin.netloc == self._host(request) else ""
        if site != "same-origin":
            raise PermissionDenied("This form was not sent from the dashboard's own page.")

    def require_token(self, request: Request, given: str) -> None:
        """Raises PermissionDenied."""
        if not hmac.compare_digest(token_of(self.sign_in(request)).encode(), given.encode()):
            raise PermissionDenied("This form is of another sign-in: load the page again.")

    def _set(
        self, request: Request, response: Response, name: str, value: str, max_age: int
    ) -> None:
        response.set_cookie(
            self._name(request, name), value, max_age=max_age, path="/",
            secure=self._is_secure(request), httponly=True, samesite="lax",
        )  # fmt: skip

    def _end(self, request: Request, response: Response, name: str) -> None:
        response.delete_cookie(
            self._name(request, name), path="/", secure=self._is_secure(request), httponly=True,
            samesite="lax",
        )  # fmt: skip

    def _name(self, request: Request, name: str) -> str:
        return f"__Host-{name}" if self._is_secure(request) else name

    def _is_secure(self, request: Request) -> bool:
        if self._behind_proxies:
            return request.headers.get("x-forwarded-proto", "").split(",")[-1].strip() == "https"
        return request.url.scheme == "https"

    def _host(self, request: Request) -> str:
        if self._behind_proxies and (named := request.headers.get("x-forwarded-host")):
            return named.split(",")[-1].strip()
        return request.headers.get("host", "")


def token_of(cookie: str) -> str:
    return hashlib.blake2b(
        b"form", key=cookie.encode("utf-8", "replace")[:64], digest_size=20
    ).hexdigest()
