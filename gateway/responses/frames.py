"""The answer to ``/v1/responses``: one object, or OpenAI's events with numbers that rise by one.

An answer is items: a message with one text, and calls of functions, each begun, grown and done in
its own events. An object that is sent whole comes from the same steps, so that both say the same.
"""

import time
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.errors import GatewayError
from gateway.inference.answer import Counts, Written
from gateway.inference.call_reader import CallDelta
from gateway.inference.choice import Delta
from gateway.inference.frames import DETAIL, END, Frames
from gateway.inference.logprobs import chat_logprobs
from gateway.inference.order import Order
from gateway.inference.tokenizer import Tokenizer
from gateway.responses.archive import Archive

LIMITED = {"requests", "tokens", "insufficient_quota"}  # kinds of errors

Json = dict[str, Any]


class ResponseFrames(Frames):
    endpoint = "responses"
    whole_object = chunk_object = "response"
    id_prefix = "resp_"

    def __init__(
        self, order: Order, tokenizer: Tokenizer, *, created: int, archive: Archive
    ) -> None:
        super().__init__(order, tokenizer, created=created)
        assert order.responding is not None
        self._what = order.responding
        self._archive = archive
        self._number = 0  # of the next event
        self._items: list[Json] = []
        self._finish: str | None = None
        self._why: dict[str, str] | None = None
        self._final: Json | None = None

    def opening(self) -> bytes:
        begun = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=begun) for kind in kinds)

    def chunk(self, index: int, delta: Delta) -> bytes:
        frames = self._grow_text(delta) if delta.text or delta.chances else b""
        for call in delta.calls:
            frames += self._grow_call(call)
        self._finish = delta.finish or self._finish
        self._why = delta.why or self._why
        return frames

    def choice(self, index: int, written: Written) -> Json:
        raise NotImplementedError("a response has items")

    def closing(self, counts: Counts) -> bytes:
        frames = b"" if self._items else self._begin_text()  # an answer has an item at least
        frames += self._end_item()
        self._final = self._ended(counts)
        return frames + self._event(f"response.{self._final['status']}", response=self._final)

    def whole(self, written: Sequence[Written], counts: Counts) -> bytes:
        (one,) = written
        self.chunk(0, Delta(one.text, one.chances, one.finish, one.why))
        for position, call in enumerate(one.calls):
            gained = CallDelta(position, call.arguments, call.id, call.name)
            self.chunk(0, Delta(calls=(gained,)))
        self.closing(counts)
        return orjson.dumps(self._final)

    def failed(self, error: GatewayError) -> bytes:
        code = "rate_limit_exceeded" if error.kind in LIMITED else "server_error"
        told = {"code": code, "message": error.message}
        response = {**self._response("failed"), "error": told, "output": self._items}
        return self._event("response.failed", response=response)

    async def keep(self) -> None:
        if self._what.store and self._final is not None:
            who = self._order.principal
            await self._archive.keep(who, self._final, self._what)

    def _grow_text(self, delta: Delta) -> bytes:
        frames = b""
        if not self._items or self._items[-1]["type"] != "message":
            frames = self._end_item() + self._begin_text()
        part = self._items[-1]["content"][0]
        chances: list[Json] = []
        if self._order.options.logprobs is not None:
            chances = chat_logprobs(delta.chances, self._speller)["content"]
        part["text"] += delta.text
        part["logprobs"] += chances
        return frames + self._event(
            "response.output_text.delta", **self._place(), delta=delta.text, logprobs=chances
        )

    def _begin_text(self) -> bytes:
        item: Json = {
            "id": f"msg_{self._serial()}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        self._items.append(item)
        frames = self._event("response.output_item.added", output_index=self._at, item=item)
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        frames += self._event("response.content_part.added", **self._place(), part=part)
        item["content"] = [part]
        return frames

    def _grow_call(self, call: CallDelta) -> bytes:
        frames = b""
        if call.id is not None:
            frames = self._end_item()
            item = {
                "id": f"fc_{self._serial()}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.id,
                "name": call.name or "",
                "arguments": "",
            }
            self._items.append(item)
            frames += self._event("response.output_item.added", output_index=self._at, item=item)
        if call.arguments:
            item = self._items[-1]
            item["arguments"] += call.arguments
            frames += self._event(
                "response.function_call_arguments.delta",
                item_id=item["id"],
                output_index=self._at,
                delta=call.arguments,
            )
        return frames

    def _end_item(self) -> bytes:
        if not self._items or self._items[-1]["status"] != "in_progress":
            return b""
        item = self._items[-1]
        item["status"] = "incomplete" if self._finish == "length" else "completed"
        if item["type"] == "message":
            part, place = item["content"][0], self._place()
            frames = self._event(
                "response.output_text.done",
                **place,
                text=part["text"],
                logprobs=part["logprobs"],
            ) + self._event("response.content_part.done", **place, part=part)
        else:
            frames = self._event(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=self._at,
                name=item["name"],
                arguments=item["arguments"],
            )
        return frames + self._event("response.output_item.done", output_index=self._at, item=item)

    @property
    def _at(self) -> int:
        return len(self._items) - 1

    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": self._at, "content_index": 0}

    def _serial(self) -> str:
        """Of an item within this response."""
        return f"{self._order.id.removeprefix('req_')}{len(self._items):04x}"

    def _event(self, kind: str, **facts: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **facts}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + END

    def _ended(self, counts: Counts) -> Json:
        cut = self._finish == "length"
        response = self._response("incomplete" if cut else "completed")
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        if self._why:
            response[DETAIL] = self._why
        usage = {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
            "output_tokens": counts.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.total,
        }
        return {**response, "output": self._items, "usage": usage}

    def _response(self, status: str) -> Json:
        tier = self._order.tier
        return {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._head["created"],
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._head["model"],
            "output": [],
            "usage": None,
            **self._what.settings,
            "service_tier": tier.value if tier else "default",
            "store": self._what.store,
        }
