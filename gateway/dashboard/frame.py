"""What is around every page: navigation, preferences, and what was done a moment ago."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.dashboard.cookies import SAID, THEME, ZONE, Cookies, token_of
from gateway.dashboard.page import Page
from gateway.dashboard.rendering import Rendering
from gateway.dashboard.timespan import zone_named
from gateway.dashboard.visit import ROOT, Visit
from gateway.errors import InvalidRequest
from gateway.identity.viewer import Viewer

UTC_ZONE = "UTC"
THEMES = ("light", "dark", "system")
MOST_SAID = 300
FIRST = f"{ROOT}/"
WRONG = "!"  # begins what was refused


class Frame:
    def __init__(self, pages: Sequence[Page], cookies: Cookies, rendering: Rendering) -> None:
        self._pages = pages
        self._cookies = cookies
        self._rendering = rendering

    def answer(
        self,
        request: Request,
        template: str,
        content: Mapping[str, Any],
        *,
        viewer: Viewer | None = None,
        page: Page | None = None,
        visit: Visit | None = None,
        status: int = HTTPStatus.OK,
    ) -> Response:
        around = self._around(request, viewer, page, visit)
        answer = self._rendering.answer(template, {**around, **content}, status)
        if SAID in request.cookies:
            answer.delete_cookie(SAID, path=ROOT)
        return answer

    def done(self, request: Request, href: str, said: str, *, wrong: bool = False) -> Response:
        """On to a page, which says what was done."""
        response = RedirectResponse(href, HTTPStatus.SEE_OTHER)
        text = (WRONG if wrong else "") + said[:MOST_SAID]
        self._cookies.remember(request, response, SAID, quote(text))
        return response

    def _around(
        self, request: Request, viewer: Viewer | None, page: Page | None, visit: Visit | None
    ) -> dict[str, Any]:
        said = unquote(request.cookies.get(SAID, ""))[: MOST_SAID + 1]
        return {
            "page": page,
            "viewer": viewer,
            "visit": visit,
            "sections": self._sections(viewer),
            "root": ROOT,
            "csrf": token_of(self._cookies.sign_in(request)),
            "theme": theme if (theme := request.cookies.get(THEME)) in ("light", "dark") else "",
            "zone": (visit.zone if visit else chosen_zone(request)).key,
            "address": address_of(request),
            "said": "" if said.startswith(WRONG) else said,
            "wrong": said.removeprefix(WRONG) if said.startswith(WRONG) else "",
            "error": None,
            "form": {},
        }

    def _sections(self, viewer: Viewer | None) -> dict[str, list[Page]]:
        sections: dict[str, list[Page]] = {}
        for each in self._pages:
            if each.section and viewer is not None and each.is_for(viewer):
                sections.setdefault(each.section, []).append(each)
        return sections


def zone_of(request: Request) -> ZoneInfo:
    """As the address says, else as it was chosen last, else UTC. Raises InvalidRequest."""
    if (asked := request.query_params.get("zone")) is not None:
        return zone_named(asked)
    return chosen_zone(request)


def chosen_zone(request: Request) -> ZoneInfo:
    try:
        return zone_named(unquote(request.cookies.get(ZONE, UTC_ZONE)))
    except InvalidRequest:
        return ZoneInfo(UTC_ZONE)


def address_of(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def inside(target: str) -> str:
    """Where to go next: never to another site."""
    good = target.startswith(FIRST) and "\\" not in target and target.isprintable()
    return target if good else FIRST
