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

SIGN_IN, ZONE, THEME, SAID = (
    "loratorio-sign-in",
    "loratorio-zone",
    "loratorio-theme",
    "loratorio-said",
)
PATH = "/dashboard"
YEAR_S = 365 * 86400
SAID_S = 30


class Cookies:
    """``behind_proxies``: what they say of the client's connection is believed."""

    def __init__(self, *, behind_proxies: bool) -> None:
        self._behind_proxies = behind_proxies

    def sign_in(self, request: Request) -> str:
        return request.cookies.get(self._name(request), "")

    def set_sign_in(self, request: Request, response: Response, value: str) -> None:
        response.set_cookie(
            self._name(request),
            value,
            max_age=int(LONGEST.total_seconds()),
            path="/",
            secure=self._is_secure(request),
            httponly=True,
            samesite="lax",
        )

    def end_sign_in(self, request: Request, response: Response) -> None:
        response.delete_cookie(
            self._name(request), path="/", secure=self._is_secure(request), httponly=True,
            samesite="lax",
        )  # fmt: skip

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

    def _name(self, request: Request) -> str:
        return f"__Host-{SIGN_IN}" if self._is_secure(request) else SIGN_IN

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
