"""Style sheets, scripts and pictures: read once, named by their content, and so kept for ever."""

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}  # fmt: skip
FOLDERS = ("static", "vendor")
PATH = "/dashboard/assets"


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    kind: str
    digest: str


class Assets:
    def __init__(self) -> None:
        here = Path(__file__).parent
        self._known = {
            file.name: _read(file)
            for folder in FOLDERS
            for file in sorted((here / folder).iterdir())
            if file.suffix in KINDS
        }

    def href(self, name: str) -> str:
        return f"{PATH}/{self._known[name].digest}/{name}"

    async def answer(self, request: Request) -> Response:
        asset = self._known.get(request.path_params["name"])
        if asset is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        current = asset.digest == request.path_params["digest"]
        headers = {
            "cache-control": "public, max-age=31536000, immutable" if current else "no-cache",
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
            "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        }
        return Response(asset.body, media_type=asset.kind, headers=headers)


def _read(file: Path) -> Asset:
    body = file.read_bytes()
    return Asset(body, KINDS[file.suffix], hashlib.blake2b(body, digest_size=8).hexdigest())
