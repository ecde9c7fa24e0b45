"""Every answer is what the official package's types say, event by event, with nothing unknown."""

import json

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.gateway.serving import BASE, KEY, ask, post, serving
from tests.gateway.test_streaming import frames

CHAT = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
TEXT = {"model": BASE, "prompt": ["Hello", "dog"], "max_tokens": 12}
USAGE = {"stream_options": {"include_usage": True}}
VARIANTS = [
    {},
    {"n": 3},
    {"stop": ["o"]},
    {"temperature": 0, "seed": 1, "service_tier": "flex", "logit_bias": {"5": 1}},
]
CHATS = [*VARIANTS, {"logprobs": True, "top_logprobs": 3, "n": 2}]
TEXTS = [*VARIANTS, {"logprobs": 3, "echo": True, "n": 2}, {"logprobs": 0, "best_of": 2}]


def unknown(found, path=""):
    """Fields that the official types do not have. Nothing but what we say we add may be there."""
    if isinstance(found, list):
        return [name for i, item in enumerate(found) for name in unknown(item, f"{path}[{i}]")]
    if not isinstance(found, BaseModel):
        return []
    extra = [f"{path}.{name}" for name in found.model_extra or ()]
    known = {name: getattr(found, name) for name in type(found).model_fields}
    return extra + [
        name for key, value in known.items() for name in unknown(value, f"{path}.{key}")
    ]


def read(kind, value):
    found = kind.model_validate(value, strict=True)
    assert unknown(found) == []
    return found


def scored(choice):
    """An echoed prompt's first token follows nothing: OpenAI says null, its types know no null."""
    if (logprobs := choice["logprobs"]) and logprobs["token_logprobs"][:1] == [None]:
        logprobs = {**logprobs, **{name: logprobs[name][1:] for name in
                                   ("token_logprobs", "top_logprobs")}}  # fmt: skip
    return {**choice, "logprobs": logprobs}


async def streamed(server, path, body):
    got = await ask(server.port, post({**body, "stream": True}, path=path))
    assert got.status == 200, got.body
    return frames(got.body)


@pytest.mark.parametrize("fields", CHATS, ids=json.dumps)
async def test_a_whole_chat(tmp_path, fields):
    async with serving(tmp_path) as server:
        server.say("Hello there 🙂")
        found = read(ChatCompletion, (await ask(server.port, post({**CHAT, **fields}))).json)
        assert [choice.index for choice in found.choices] == list(range(fields.get("n", 1)))
        assert all(choice.message.role == "assistant" for choice in found.choices)


@pytest.mark.parametrize("fields", TEXTS, ids=json.dumps)
async def test_a_whole_completion(tmp_path, fields):
    async with serving(tmp_path) as server:
        server.say("Hello there 🙂")
        got = await ask(server.port, post({**TEXT, **fields}, path="/v1/completions"))
        assert got.json.get("service_tier") == fields.get("service_tier")
        answer = {**got.json, "choices": [scored(choice) for choice in got.json["choices"]]}
        answer.pop("service_tier", None)
        found = read(Completion, answer)
        assert [choice.index for choice in found.choices] == list(range(2 * fields.get("n", 1)))


@pytest.mark.parametrize("usage", [{}, USAGE], ids=["plain", "usage"])
@pytest.mark.parametrize("fields", CHATS, ids=json.dumps)
async def test_a_streamed_chat_event_by_event(tmp_path, fields, usage):
    async with serving(tmp_path) as server:
        server.say("Hello there 🙂")
        whole = (await ask(server.port, post({**CHAT, **fields}))).json
        raw = await streamed(server, "/v1/chat/completions", {**CHAT, **fields, **usage})
        chunks = [read(ChatCompletionChunk, chunk) for chunk in raw]
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        if usage:
            assert chunks[-1].choices == []
            assert chunks.pop().usage.model_dump() == read(ChatCompletion, whole).usage.model_dump()
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
        texts = {}
        for chunk in chunks:
            (choice,) = chunk.choices
            if choice.index not in texts:  # each begins with its role, and once
                assert choice.delta.role == "assistant"
                texts[choice.index] = ["", None]
            else:
                assert choice.delta.role is None
            state = texts[choice.index]
            assert state[1] is None, "nothing follows a finish reason"
            state[0] += choice.delta.content or ""
            state[1] = choice.finish_reason
        assert {index: tuple(state) for index, state in texts.items()} == {
            choice["index"]: (choice["message"]["content"], choice["finish_reason"])
            for choice in whole["choices"]
        }


@pytest.mark.parametrize("fields", [f for f in TEXTS if "best_of" not in f], ids=json.dumps)
async def test_a_streamed_completion_event_by_event(tmp_path, fields):
    async with serving(tmp_path) as server:
        server.say("Hello there 🙂")
        body = {**TEXT, **fields}
        whole = (await ask(server.port, post(body, path="/v1/completions"))).json
        *raw, last = await streamed(server, "/v1/completions", {**body, **USAGE})
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
        texts, ends, offsets = {}, {}, {}
        for chunk in raw:
            assert chunk.pop("usage") is None
            chunk.pop("service_tier", None)
            # The official type of a streamed choice is that of a whole one, reason and all.
            (choice,) = chunk["choices"]
            reason = choice["finish_reason"]
            ended = {**scored(choice), "finish_reason": reason or "stop"}
            read(Completion, {**chunk, "choices": [ended]})
            index = choice["index"]
            assert index not in ends
            texts[index] = texts.get(index, "") + choice["text"]
            offsets.setdefault(index, []).extend((choice["logprobs"] or {}).get("text_offset", ()))
            if reason:
                ends[index] = reason
        for choice in whole["choices"]:
            index = choice["index"]
            assert (texts[index], ends[index]) == (choice["text"], choice["finish_reason"])
            if choice["logprobs"]:
                assert offsets[index] == choice["logprobs"]["text_offset"]


async def test_models(tmp_path):
    async with serving(tmp_path) as server:
        lines = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        got = await ask(server.port, (lines + "connection: close\r\n\r\n").encode())
        assert [read(Model, model).id for model in got.json["data"]] == [BASE, "support", "json"]
