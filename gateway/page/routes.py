"""The page at ``/``: plain files with a strict content security policy, and the engines' state."""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Response

from gateway.health import Health

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


def page_router(health: Health, *, base_model: str, is_open: bool) -> APIRouter:
    """Reads its files once."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in FILES.items():
        body = files(__package__).joinpath(name).read_bytes()
        router.add_api_route(path, _fixed(body, kind), methods=["GET", "HEAD"])

    async def state() -> dict[str, Any]:
        return {"base_model": base_model, "open": is_open, **health.state()}

    router.add_api_route("/page/state", state, methods=["GET"])
    return router


def _fixed(body: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(body, media_type=kind, headers=HEADERS)

    return answer
