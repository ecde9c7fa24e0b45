"""Templates into answers, under a policy that runs no script and no style but our own files."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from gateway.dashboard import numbers
from gateway.dashboard.assets import Assets

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
FILTERS = (
    numbers.usd, numbers.exact_usd, numbers.count, numbers.short, numbers.size, numbers.seconds,
    numbers.span, numbers.moment, numbers.instant, numbers.stamp,
)  # fmt: skip


class Rendering:
    """Templates are compiled once; names they do not know are errors."""

    def __init__(self, assets: Assets) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.globals |= {
            "asset": assets.href, "share": numbers.share, "change": numbers.change,
        }  # fmt: skip
        self._templates.filters |= {each.__name__: each for each in FILTERS}

    def answer(
        self, template: str, content: Mapping[str, Any], status: int = HTTPStatus.OK
    ) -> HTMLResponse:
        page = self._templates.get_template(template).render(content)
        return HTMLResponse(page, status, headers=HEADERS)
