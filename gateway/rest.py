"""The application behind the hot routes: the page and the API's description. No request of a
tenant's traffic comes through here."""

from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, MethodNotAllowed, RouteNotFound
from gateway.health import Health
from gateway.page.routes import page_router


def rest_application(health: Health, *, base_model: str, is_open: bool) -> FastAPI:
    application = FastAPI(title="Loratorio", docs_url=None, redoc_url=None)
    application.add_exception_handler(HTTPException, _as_openai)  # type: ignore[arg-type]
    application.include_router(page_router(health, base_model=base_model, is_open=is_open))
    return application


async def _as_openai(request: Request, error: HTTPException) -> Response:
    """Every error has one shape, also for paths that do not exist."""
    told: GatewayError
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        told = MethodNotAllowed(f"{request.method} is not allowed here.", headers=error.headers)
    else:
        told = RouteNotFound(f"Unknown path {request.url.path[:200]}.")
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers())
