"""The application behind the hot routes: the page and the API's description.

No request of a tenant's traffic comes through here.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, MethodNotAllowed, RouteNotFound
from gateway.health import Health
from gateway.inference.description import paths
from gateway.page.routes import page_router


def rest_application(health: Health, *, base_model: str, is_open: bool) -> FastAPI:
    application = FastAPI(title="Loratorio", docs_url=None, redoc_url=None)
    application.add_exception_handler(HTTPException, _as_openai)  # type: ignore[arg-type]
    application.include_router(page_router(health, base_model=base_model, is_open=is_open))
    application.openapi = _described(application.openapi)  # type: ignore[method-assign]
    return application


def _described(derived: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's document with the hot routes, which it does not see, added."""

    def document() -> dict[str, Any]:
        found = derived()
        schemes = {"key": {"type": "http", "scheme": "bearer"}}
        return {
            **found,
            "paths": {**paths(), **found.get("paths", {})},
            "components": {**found.get("components", {}), "securitySchemes": schemes},
        }

    return document


async def _as_openai(request: Request, error: HTTPException) -> Response:
    """Every error has one shape, also for paths that do not exist."""
    told: GatewayError
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        told = MethodNotAllowed(f"{request.method} is not allowed here.", headers=error.headers)
    else:
        told = RouteNotFound(f"Unknown path {request.url.path[:200]}.")
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers())
