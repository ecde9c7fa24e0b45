"""Responses that were kept: read, listed by their input, deleted."""

from enum import StrEnum
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.files.routes import caller_of, list_of
from gateway.identity.principal import Principal
from gateway.inference.gate import Gate
from gateway.responses.archive import Archive

Json = dict[str, Any]


class Direction(StrEnum):
    ASC = "asc"
    DESC = "desc"


def response_router(gate: Gate, archive: Archive) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["responses"])
    Who = Annotated[Principal, Depends(caller_of(gate))]

    @router.get("/{response_id}", summary="A response that was kept")
    async def one(response_id: str, who: Who, stream: bool = False) -> Json:
        if stream:
            raise UnsupportedParameter("A kept response is not streamed again.", param="stream")
        found: Json = orjson.loads((await archive.one(who, response_id)).body)
        return found

    @router.delete("/{response_id}", summary="Forget it")
    async def delete(response_id: str, who: Who) -> Json:
        await archive.delete(who, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/{response_id}/cancel", summary="Refused: none runs in the background")
    async def cancel(response_id: str, who: Who) -> Json:
        await archive.one(who, response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")

    @router.get("/{response_id}/input_items", summary="What it was asked")
    async def items(
        response_id: str,
        who: Who,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Direction = Direction.DESC,
        after: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Json:
        found: list[Json] = orjson.loads((await archive.one(who, response_id)).items)
        rows = found[::-1] if order is Direction.DESC else found
        ids = [row["id"] for row in rows]
        if after is not None and after not in ids:
            raise InvalidRequest("after names no item of this response.", param="after")
        rows = rows[ids.index(after) + 1 :] if after is not None else rows
        return list_of(rows[:limit], has_more=len(rows) > limit)

    return router
