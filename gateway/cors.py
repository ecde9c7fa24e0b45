"""Web pages of other origins: none may call the API unless the operator names them.

A page sends its key in a header, never by cookie, so no credentials are allowed.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from gateway.http import Asgi

# What a page may read of an answer besides its body.
EXPOSED = (
    "idempotent-replayed", "openai-organization", "openai-processing-ms", "openai-version",
    "retry-after", "retry-after-ms",
    "x-ignored-params", "x-request-id", "x-should-retry",
    *(f"x-ratelimit-{fact}-{what}" for fact in ("limit", "remaining", "reset")
      for what in ("requests", "tokens")),
)  # fmt: skip
PREFLIGHT_SECONDS = 600  # how long a browser need not ask again


def with_cors(application: Asgi, origins: Sequence[str]) -> Asgi:
    """``origins`` as browsers write them, or ``*`` for all; without any nothing changes."""
    if not origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=PREFLIGHT_SECONDS,
    )
