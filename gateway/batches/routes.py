"""``/v1/batches``: files of requests that nobody waits for."""

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.batches.desk import WINDOW, Asked, BatchDesk
from gateway.batches.models import Batch, BatchState
from gateway.errors import InvalidRequest
from gateway.files.multipart import LIFETIMES
from gateway.files.routes import caller_of, checked_after, list_of
from gateway.http import Request as RawRequest
from gateway.identity.principal import Principal
from gateway.inference.body import parse_object
from gateway.inference.gate import Gate

Json = dict[str, Any]
MOST_FORM_BYTES = 64 << 10
Label = Annotated[str, Field(max_length=512)]
LabelName = Annotated[str, Field(min_length=1, max_length=64)]
# When a batch came to each state that has a time of its own.
ENDS = (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


class OutputExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: int = Field(ge=LIFETIMES.start, lt=LIFETIMES.stop)


class CreateBatch(BaseModel):
    model_config = ConfigDict(strict=True)

    input_file_id: str = Field(min_length=1, max_length=64)
    endpoint: str = Field(min_length=1, max_length=64)
    completion_window: Literal["24h"]
    metadata: dict[LabelName, Label] | None = Field(None, max_length=16)
    output_expires_after: OutputExpiresAfter | None = None


def _text(**more: Any) -> Json:
    return {"type": "string", **more}


# The form above: it is read behind the key, so nothing derives this.
CREATE = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["input_file_id", "endpoint", "completion_window"],
                    "properties": {
                        "input_file_id": _text(maxLength=64),
                        "endpoint": _text(maxLength=64),
                        "completion_window": _text(enum=[WINDOW]),
                        "metadata": {
                            "type": "object",
                            "maxProperties": 16,
                            "additionalProperties": _text(maxLength=512),
                        },
                        "output_expires_after": {
                            "type": "object",
                            "required": ["anchor", "seconds"],
                            "properties": {
                                "anchor": _text(enum=["created_at"]),
                                "seconds": {
                                    "type": "integer",
                                    "minimum": LIFETIMES.start,
                                    "maximum": LIFETIMES.stop - 1,
                                },
                            },
                        },
                    },
                }
            }
        },
    }
}


def batch_router(gate: Gate, desk: BatchDesk) -> APIRouter:
    router = APIRouter(prefix="/v1/batches", tags=["batches"])
    Who = Annotated[Principal, Depends(caller_of(gate))]

    @router.post("", summary="Answer the requests in a file within a day", openapi_extra=CREATE)
    async def create(request: Request, who: Who) -> Json:
        form = await _form(request)
        kept = form.output_expires_after
        asked = Asked(
            input_file=form.input_file_id,
            endpoint=form.endpoint,
            labels=form.metadata,
            output_seconds=kept.seconds if kept else None,
        )
        return batch_of(await desk.create(who, asked))

    @router.get("", summary="Your batches, newest first")
    async def listed(
        who: Who,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Json:
        rows = await desk.page(who, most=limit, after=checked_after(after, "batch_"))
        return list_of([batch_of(row) for row in rows[:limit]], has_more=len(rows) > limit)

    @router.get("/{batch_id}", summary="How far one is")
    async def one(batch_id: str, who: Who) -> Json:
        return batch_of(await desk.one(who, batch_id))

    @router.post("/{batch_id}/cancel", summary="Begin no further line of it")
    async def cancel(batch_id: str, who: Who) -> Json:
        return batch_of(await desk.cancel(who, batch_id))

    return router


async def _form(request: Request) -> CreateBatch:
    """Read once it is known who asks. Raises InvalidRequest naming the field."""
    body = parse_object(await RawRequest(request.scope, request.receive).json_body(MOST_FORM_BYTES))
    try:
        return CreateBatch.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{path}: {first['msg']}"[:500], param=path[:200]) from error


def batch_of(row: Batch) -> Json:
    ended = {f"{state}_at": row.ended_at if row.state == state else None for state in ENDS}
    times = {
        "created_at": row.created_at,
        "in_progress_at": row.in_progress_at,
        "expires_at": row.expires_at,
        "finalizing_at": row.finalizing_at,
        "cancelling_at": row.cancelling_at,
        **ended,
    }
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": orjson.loads(row.errors) if row.errors else None,
        "input_file_id": row.input_file,
        "completion_window": WINDOW,
        "status": row.state,
        "output_file_id": row.output_file,
        "error_file_id": row.error_file,
        **{name: int(time.timestamp()) if time else None for name, time in times.items()},
        "request_counts": {
            "total": row.total,
            "completed": row.completed,
            "failed": row.failed,
        },
        "usage": {
            "input_tokens": row.prompt_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": row.prompt_tokens + row.completion_tokens,
        },
        "metadata": orjson.loads(row.labels) if row.labels else None,
    }
