"""``POST /v1/files``: one file and what is to become of it, as multipart/form-data.

The parser spools the file to disk as it arrives, and counts it, so that no request brings more
than the limit.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gateway.adapter_api.multipart import FORM_BYTES, counted_request
from gateway.errors import BodyTooLarge, InvalidRequest, MissingParameter, UnsupportedMediaType
from gateway.files.models import Purpose
from gateway.files.shelf import checked_filename
from gateway.http import ClientGone

TAKEN = (Purpose.BATCH, Purpose.USER_DATA)
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
LIFETIMES = range(3600, 2_592_000 + 1)  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    source: BinaryIO
    nbytes: int
    filename: str
    purpose: Purpose
    lifetime: timedelta | None


async def receive_file(request: Request, *, limit: int) -> Sent:
    """Raises InvalidRequest naming the field, BodyTooLarge, UnsupportedMediaType, ClientGone."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise UnsupportedMediaType("Send the file as multipart/form-data.")
    try:
        form = await counted_request(request, limit + FORM_BYTES).form(max_files=1, max_fields=16)
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    file = form.get("file")
    if isinstance(file, str):
        raise InvalidRequest(
            "file is a text field: send it as a file, with a filename.", param="file"
        )
    if file is None:
        raise MissingParameter("The form has no file.", param="file")
    nbytes = file.size or 0
    if nbytes > limit:
        raise BodyTooLarge(f"The file has {nbytes} bytes; at most {limit} are taken.", param="file")
    if nbytes == 0:
        raise InvalidRequest("The file is empty.", param="file", code="empty_file")
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    return Sent(
        source=file.file,
        nbytes=nbytes,
        filename=checked_filename(file.filename or ""),
        purpose=_purpose(fields.get("purpose")),
        lifetime=_lifetime(fields),
    )


def _purpose(value: str | None) -> Purpose:
    if value is None:
        raise MissingParameter("The form has no purpose.", param="purpose")
    for purpose in TAKEN:
        if purpose == value:
            return purpose
    raise InvalidRequest(
        f"purpose {value[:40]!a}: files are taken for {' and '.join(TAKEN)}.", param="purpose"
    )


def _lifetime(fields: dict[str, str]) -> timedelta | None:
    anchor, seconds = fields.get(ANCHOR), fields.get(SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest(f"{ANCHOR} must be 'created_at'.", param=ANCHOR)
    known = seconds and seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    return checked_lifetime(int(seconds or 0) if known else None, SECONDS)


def checked_lifetime(seconds: int | None, param: str) -> timedelta:
    """Raises InvalidRequest."""
    if seconds is None or seconds not in LIFETIMES:
        raise InvalidRequest(
            f"{param} must be an integer from {LIFETIMES.start} to {LIFETIMES.stop - 1}.",
            param=param,
        )
    return timedelta(seconds=seconds)
