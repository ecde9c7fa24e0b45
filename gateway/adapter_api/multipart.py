"""One multipart request with both files and the form's fields.

The files are spooled to disk by the parser as they arrive; here they are only counted, so that no
request can bring more than the limit, and handed on in parts.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateway.adapter_api.forms import CreateUpload
from gateway.adapter_api.staging import FILES, MAX_PART_BYTES
from gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType
from gateway.http import BODY_SECONDS, ClientGone

FORM_BYTES = 1 << 20  # allowed beside the files
PIECE = 1 << 20
TRUE = {"true": True, "1": True, "false": False, "0": False, "": False}


@dataclass(frozen=True, slots=True)
class Spooled:
    """One file of the form."""

    file: UploadFile
    nbytes: int

    def parts(self) -> Iterator[AsyncIterator[bytes]]:
        for _ in range(max(1, -(-self.nbytes // MAX_PART_BYTES))):
            yield self._part()

    async def _part(self) -> AsyncIterator[bytes]:
        left = MAX_PART_BYTES
        while left and (piece := await self.file.read(min(PIECE, left))):
            left -= len(piece)
            yield piece

    def close(self) -> None:
        self.file.file.close()


async def receive_form(request: Request, *, limit: int) -> tuple[CreateUpload, dict[str, Spooled]]:
    """Raises InvalidRequest naming the field, BodyTooLarge, UnsupportedMediaType, ClientGone."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise UnsupportedMediaType(
            "Send multipart/form-data, or begin an upload in parts at /v1/adapters/uploads."
        )
    counted = counted_request(request, limit + FORM_BYTES)
    try:
        form = await counted.form(max_files=len(FILES), max_fields=16)
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    files: dict[str, Spooled] = {}
    fields: dict[str, str | bool] = {}
    for key, value in form.multi_items():
        if isinstance(value, UploadFile):
            name = value.filename or ""
            if name not in FILES or name in files:
                raise InvalidRequest(
                    f"file {name[:80]!a}: send {' and '.join(FILES)}, each once", param="file"
                )
            files[name] = Spooled(value, value.size or 0)
        else:
            fields[key] = TRUE.get(value.lower(), value) if key == "force" else value
    for name in FILES:
        if name not in files:
            raise InvalidRequest(f"{name} is missing from the form", param="file")
    try:
        return CreateUpload.model_validate(fields), files
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{path}: {first['msg']}", param=path) from error


def counted_request(request: Request, limit: int) -> Request:
    """The same, but reading more than ``limit`` bytes of its body raises BodyTooLarge.

    A body that stalls raises InvalidRequest. Raises UnsupportedMediaType for one that is encoded.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Send the body without a content encoding.")
    received = 0

    async def receive() -> Message:
        """Raises BodyTooLarge or InvalidRequest."""
        nonlocal received
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await request.receive()
        except TimeoutError:
            raise InvalidRequest("The body stalled.", code="timeout") from None
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLarge(f"The body is larger than {limit} bytes.")
        return message

    return Request(request.scope, receive)
