"""The application behind the hot routes: adapters, the page and the API's description.

No request of a tenant's traffic comes through here.
"""

import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.dashboard.visit import ROOT as DASHBOARD
from gateway.db import DatabaseUnavailable
from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    RouteNotFound,
    Unavailable,
)
from gateway.health import Health
from gateway.http import ClientGone
from gateway.inference.creation import UNDER
from gateway.inference.description import ONCE, paths
from gateway.page.routes import page_router

_IN_PATH = re.compile(r"{(\w+)}")
BEARER = HTTPBearer(auto_error=False, scheme_name="key")  # for the description; routes check keys


def rest_application(
    health: Health,
    *,
    base_model: str,
    is_open: bool,
    routers: Iterable[APIRouter] = (),
    dashboard: ASGIApp | None = None,
) -> FastAPI:
    application = FastAPI(title="Loratorio", docs_url=None, redoc_url=None)
    application.add_exception_handler(HTTPException, _as_openai)  # type: ignore[arg-type]
    application.add_exception_handler(RequestValidationError, _as_invalid)  # type: ignore[arg-type]
    for error in (GatewayError, DatabaseUnavailable, ClientGone):
        application.add_exception_handler(error, _as_told)
    application.add_exception_handler(Exception, _as_fault)
    for router in routers:
        application.include_router(router, dependencies=[Security(BEARER)])
    if dashboard is not None:
        application.mount(DASHBOARD, dashboard)
    application.include_router(page_router(health, base_model=base_model, is_open=is_open))
    application.openapi = _described(application.openapi)  # type: ignore[method-assign]
    return application


def _described(derived: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's document with the hot routes, which it does not see, added."""

    def document() -> dict[str, Any]:
        found = derived()
        components = found.get("components", {})
        schemes = {"key": {"type": "http", "scheme": "bearer"}}
        beyond = found.get("paths", {})
        for path, operations in beyond.items():
            if path.startswith(UNDER) and "post" in operations:
                operations["post"].setdefault("parameters", [])
                if ONCE not in operations["post"]["parameters"]:  # FastAPI keeps its document
                    operations["post"]["parameters"].append(ONCE)
        every = {**paths(), **beyond}
        for path, operations in every.items():
            for operation in operations.values():
                _name_parameters(path, operation)
        return {
            **found,
            "paths": every,
            "components": {**components, "securitySchemes": schemes},
        }

    return document


def _name_parameters(path: str, operation: dict[str, Any]) -> None:
    """What stands in a path is a parameter, also where its handler reads it by itself."""
    parameters = operation.setdefault("parameters", [])
    named = {known["name"] for known in parameters if known["in"] == "path"}
    for name in _IN_PATH.findall(path):
        if name not in named:
            schema = {"type": "string"}
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})


async def _as_openai(request: Request, error: HTTPException) -> Response:
    """Every error has one shape, also for paths that do not exist."""
    told: GatewayError
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        told = MethodNotAllowed(f"{request.method} is not allowed here.", headers=error.headers)
    else:
        told = RouteNotFound(f"Unknown path {request.url.path[:200]}.")
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers())


async def _as_invalid(request: Request, error: RequestValidationError) -> Response:
    """The first field at fault, as everywhere: 400 with its path."""
    first = error.errors()[0]
    path = ".".join(str(step) for step in first["loc"][1:])
    problem = first["msg"] if path else _otherwise_sent(request) or first["msg"]
    told = InvalidRequest(f"{path or 'body'}: {problem}"[:500], param=path[:200] or None)
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers())


def _otherwise_sent(request: Request) -> str:
    """What is wrong with a body that is no JSON by its content type, as curl's -d sends it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return ""
    return f"send JSON with content-type application/json, not {kind[:100] or 'none'}"


async def _as_fault(request: Request, error: Exception) -> Response:
    """Of ours. Who called the application has the error as well, and logs it."""
    told = GatewayError("The server had an error; it was logged.")
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers())


async def _as_told(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientGone):
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody is there to receive it
    if not isinstance(error, GatewayError):
        error = Unavailable("The database does not answer; try again later.", retry_after=1.0)
    headers = error.headers()
    if isinstance(error, BodyTooLarge):
        headers["connection"] = "close"  # the rest of the body is not read
    return JSONResponse(error.body(), status_code=error.status, headers=headers)
