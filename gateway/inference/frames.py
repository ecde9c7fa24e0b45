"""The bytes of an answer in OpenAI's two shapes, sent whole or as server-sent events.

What does not change from chunk to chunk is encoded once per request; a chunk costs one escape of
its text. Every frame is ``data: `` and one JSON object: clients choke on anything shorter.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.errors import GatewayError
from gateway.inference.answer import Call, Counts, Written
from gateway.inference.call_reader import CallDelta
from gateway.inference.choice import Delta
from gateway.inference.logprobs import (
    Speller,
    TokenChance,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from gateway.inference.order import Order
from gateway.inference.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
END = b"\n\n"
DETAIL = "x_finish_detail"  # of a choice that a budget cut short: {"code", "message"}


class Frames(ABC):
    """One request's answer as bytes."""

    endpoint: str
    whole_object: str
    chunk_object: str
    id_prefix: str

    def __init__(self, order: Order, tokenizer: Tokenizer, *, created: int) -> None:
        self._order = order
        self._speller = Speller(tokenizer, ids=order.options.shows_ids)
        self._head: dict[str, Any] = {
            "id": self.id_prefix + order.id.removeprefix("req_"),
            "object": self.chunk_object,
            "created": created,
            "model": order.target.public_name,
            "system_fingerprint": order.target.fingerprint,
            **({"service_tier": order.tier.value} if order.tier else {}),
        }
        head = orjson.dumps(self._head)[:-1]
        self._before = b"data: " + head + b',"choices":['
        self._after = b'],"usage":null}\n\n' if order.options.include_usage else b"]}\n\n"

    def opening(self) -> bytes:
        """Frames before the first text."""
        return b""

    @abstractmethod
    def chunk(self, index: int, delta: Delta) -> bytes:
        """Frames for what one choice gained; nothing when it gained nothing to show."""

    def text(self, text: str) -> bytes:
        """The same, for text of the only choice."""
        return self.chunk(0, Delta(text, plain=True))

    @abstractmethod
    def choice(self, index: int, written: Written) -> dict[str, Any]:
        """One choice of a whole answer."""

    def closing(self, counts: Counts) -> bytes:
        """Everything after the last choice."""
        if not self._order.options.include_usage:
            return DONE
        last = {**self._head, "choices": [], "usage": usage(counts)}
        return b"data: " + orjson.dumps(last) + END + DONE

    def about(self) -> dict[str, Any]:
        """More about a whole answer."""
        return {}

    def whole(self, written: Sequence[Written], counts: Counts) -> bytes:
        choices = [self.choice(index, one) for index, one in enumerate(written)]
        answer = {
            **self._head,
            "object": self.whole_object,
            "choices": choices,
            "usage": usage(counts),
            **self.about(),
            **self._of_prompts(written),
        }
        return orjson.dumps(answer)

    def _of_prompts(self, written: Sequence[Written]) -> dict[str, Any]:
        """What a whole answer tells of its prompts beside its choices."""
        return {}

    def _prompt_logprobs(self, prompt: Sequence[int], written: Written) -> dict[str, Any]:
        wanted = self._order.options.prompt_logprobs
        if wanted is None:
            return {}
        known = written.prompt or ()
        told = prompt_logprobs(prompt, known, self._speller, alternatives=wanted)
        return {"prompt_logprobs": told}

    def failed(self, error: GatewayError) -> bytes:
        """The end of a stream that has begun and cannot go on."""
        return error_frames(error)

    async def keep(self) -> None:
        """Called before the last bytes of a good answer go out."""
        return


class ChatFrames(Frames):
    endpoint = "chat.completions"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(self, order: Order, tokenizer: Tokenizer, *, created: int) -> None:
        super().__init__(order, tokenizer, created=created)
        # Around the text of the only choice.
        self._text = self._before + b'{"index":0,"delta":{"content":'
        self._rest = b'},"logprobs":null,"finish_reason":null}' + self._after

    def opening(self) -> bytes:
        delta = b'"delta":{"role":"assistant","content":"","refusal":null}'
        rest = b',"logprobs":null,"finish_reason":null}'
        after = self._after
        if about := self.about():
            after = b"]," + orjson.dumps(about)[1:-1] + after[1:]
        return b"".join(
            self._before + b'{"index":%d,' % index + delta + rest + after
            for index in range(self._order.options.n)
        )

    def text(self, text: str) -> bytes:
        return self._text + orjson.dumps(text) + self._rest if text else b""

    def chunk(self, index: int, delta: Delta) -> bytes:
        if delta.plain:
            return self.text(delta.text)
        frames = b""
        if delta.text or delta.chances or delta.tokens:
            content = b'{"index":%d,"delta":{"content":' % index + orjson.dumps(delta.text)
            logprobs = b'},"logprobs":' + self._logprobs(delta.chances)
            rest = b',"finish_reason":null' + _tokens(delta.tokens) + b"}"
            frames = self._before + content + logprobs + rest + self._after
        for gained in delta.calls:  # one a frame: clients look at the first of a list
            call = b'{"index":%d,"delta":' % index + orjson.dumps(self._called(gained))
            rest = b',"logprobs":null,"finish_reason":null}'
            frames += self._before + call + rest + self._after
        if delta.finish:
            last = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%s"%s}'
            reason = self._reason(delta.finish).encode()
            frames += self._before + last % (index, reason, _why(delta.why)) + self._after
        return frames

    def choice(self, index: int, written: Written) -> dict[str, Any]:
        wanted = self._order.options.logprobs is not None
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": written.text or (None if written.calls else ""),
                "refusal": None,
                "annotations": [],
                **self._calls(written.calls),
            },
            "logprobs": chat_logprobs(written.chances, self._speller) if wanted else None,
            "finish_reason": written.finish and self._reason(written.finish),
            **({"token_ids": written.tokens} if self._order.options.shows_tokens else {}),
            **({DETAIL: written.why} if written.why else {}),
        }

    @property
    def _older(self) -> bool:
        """The client knows one function_call, and no tools."""
        return self._order.calling is not None and self._order.calling.box.older

    def _reason(self, finish: str) -> str:
        return "function_call" if self._older and finish == "tool_calls" else finish

    def _called(self, gained: CallDelta) -> dict[str, Any]:
        if not self._older:
            return {"tool_calls": [_call(gained)]}
        name = {} if gained.name is None else {"name": gained.name}
        return {"function_call": {**name, "arguments": gained.arguments}}

    def _calls(self, calls: Sequence[Call]) -> dict[str, Any]:
        if not calls:
            return {}
        if self._older:
            return {"function_call": _whole_call(calls[0])["function"]}
        return {"tool_calls": [_whole_call(call) for call in calls]}

    def about(self) -> dict[str, Any]:
        if not self._order.options.shows_tokens:
            return {}
        return {"prompt_token_ids": list(self._order.prompts[0])}

    def _of_prompts(self, written: Sequence[Written]) -> dict[str, Any]:
        return self._prompt_logprobs(self._order.prompts[0], written[0])

    def _logprobs(self, chances: Sequence[TokenChance]) -> bytes:
        return orjson.dumps(chat_logprobs(chances, self._speller)) if chances else b"null"


class CompletionFrames(Frames):
    endpoint = "completions"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, order: Order, tokenizer: Tokenizer, *, created: int) -> None:
        super().__init__(order, tokenizer, created=created)
        self._begun: set[int] = set()  # choices of which a chunk went out
        self._text = self._before + b'{"index":0,"text":'  # around that of the only choice
        self._rest = b',"logprobs":null,"finish_reason":null}' + self._after

    def text(self, text: str) -> bytes:
        return self._text + orjson.dumps(text) + self._rest if text else b""

    def chunk(self, index: int, delta: Delta) -> bytes:
        if delta.plain:
            return self.text(delta.text)
        if not (delta.text or delta.chances or delta.finish):
            return b""
        text = b'{"index":%d,"text":' % index + orjson.dumps(delta.text)
        logprobs = b',"logprobs":' + orjson.dumps(self._logprobs(delta.chances))
        finish = b',"finish_reason":' + orjson.dumps(delta.finish) + _why(delta.why)
        rest = finish + _tokens(delta.tokens) + self._prompt_once(index) + b"}"
        return self._before + text + logprobs + rest + self._after

    def choice(self, index: int, written: Written) -> dict[str, Any]:
        return {
            "index": index,
            "text": written.text,
            "logprobs": self._logprobs(written.chances),
            "finish_reason": written.finish,
            **self._numbers(index, written.tokens),
            **self._prompt_logprobs(self._prompt(index), written),
            **({DETAIL: written.why} if written.why else {}),
        }

    def _numbers(self, index: int, tokens: Sequence[int]) -> dict[str, Any]:
        if not self._order.options.shows_tokens:
            return {}
        return {"token_ids": tokens, "prompt_token_ids": self._prompt(index)}

    def _prompt(self, index: int) -> list[int]:
        return list(self._order.prompts[index // self._order.options.n])

    def _prompt_once(self, index: int) -> bytes:
        """With the first chunk of each choice."""
        if not self._order.options.shows_tokens or index in self._begun:
            return b""
        self._begun.add(index)
        return b',"prompt_token_ids":' + orjson.dumps(self._prompt(index))

    def _logprobs(self, chances: Sequence[TokenChance]) -> dict[str, Any] | None:
        alternatives = self._order.options.logprobs
        if alternatives is None:
            return None
        return completion_logprobs(chances, self._speller, alternatives=alternatives)


def _tokens(numbers: Sequence[int]) -> bytes:
    return b',"token_ids":' + orjson.dumps(numbers) if numbers else b""


def _call(gained: CallDelta) -> dict[str, Any]:
    if gained.id is None:
        return {"index": gained.index, "function": {"arguments": gained.arguments}}
    function = {"name": gained.name, "arguments": gained.arguments}
    return {"index": gained.index, "id": gained.id, "type": "function", "function": function}


def _whole_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _why(why: dict[str, str] | None) -> bytes:
    return b',"%s":' % DETAIL.encode() + orjson.dumps(why) if why else b""


def usage(counts: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.total,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def error_frames(error: GatewayError) -> bytes:
    """How a stream that has begun tells its failure: a frame with an ``error``, then the end."""
    return b"data: " + orjson.dumps(error.body()) + END + DONE
