"""``/v1/files``: what a project uploads for its batches, and what they write for it."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse

from gateway.errors import InvalidRequest
from gateway.files.models import Purpose, StoredFile
from gateway.files.multipart import receive_file
from gateway.files.shelf import Page, Shelf
from gateway.http import Request as RawRequest
from gateway.identity.principal import Principal
from gateway.inference.gate import Gate

Json = dict[str, Any]
MOST_LISTED = 10_000
UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch", "user_data"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer"},
                    },
                }
            }
        },
    }
}


class Order(StrEnum):
    ASC = "asc"
    DESC = "desc"


def caller_of(gate: Gate):  # type: ignore[no-untyped-def]
    """A dependency: whose key it is. Admin keys and keys for other routes are refused."""

    async def caller(request: Request) -> Principal:
        return await gate.admit(RawRequest(request.scope, request.receive))

    return caller


def file_router(gate: Gate, shelf: Shelf) -> APIRouter:
    router = APIRouter(prefix="/v1/files", tags=["files"])
    Who = Annotated[Principal, Depends(caller_of(gate))]

    @router.post("", summary="Upload a file", openapi_extra=UPLOAD)
    async def upload(request: Request, who: Who) -> Json:
        sent = await receive_file(request, limit=shelf.limits.max_bytes)
        with sent.source as source:
            row = await shelf.add(
                who,
                source,
                filename=sent.filename,
                purpose=sent.purpose,
                lifetime=sent.lifetime,
            )
        return file_of(row)

    @router.get("", summary="Your files")
    async def listed(
        who: Who,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
        order: Order = Order.DESC,
        after: Annotated[str | None, Query(max_length=64)] = None,
        purpose: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Json:
        page = Page(
            most=limit, newest_first=order is Order.DESC, after=checked_after(after, "file-")
        )
        kind = next((known for known in Purpose if known == purpose), None)
        if purpose is not None and kind is None:
            return list_of([], has_more=False)
        rows = await shelf.page(who, page, kind)
        return list_of([file_of(row) for row in rows[:limit]], has_more=len(rows) > limit)

    @router.get("/{file_id}", summary="One of them")
    async def one(file_id: str, who: Who) -> Json:
        return file_of(await shelf.one(who, file_id))

    @router.get(
        "/{file_id}/content",
        summary="Its bytes",
        response_class=FileResponse,
    )
    async def content(file_id: str, who: Who) -> FileResponse:
        path = await shelf.content(who, file_id)
        return FileResponse(path, media_type="application/octet-stream")

    @router.delete("/{file_id}", summary="Delete it")
    async def delete(file_id: str, who: Who) -> Json:
        await shelf.delete(who, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    return router


def checked_after(after: str | None, prefix: str) -> str | None:
    """An id of that kind, whoever's it is, and whether or not it is there still: a list goes on
    from its time. Raises InvalidRequest; else a client that pages by something else would get the
    first page for ever."""
    if after is not None and not re.fullmatch(f"{prefix}[0-9a-f]{{32}}", after):
        raise InvalidRequest("after must be the id of the last one seen.", param="after")
    return after


def file_of(row: StoredFile) -> Json:
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.nbytes,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": int(row.expires_at.timestamp()),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def list_of(data: Sequence[Json], *, has_more: bool) -> Json:
    """A page, as OpenAI's clients turn it."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
