"""Every documented field of both generating endpoints, one row each: what passes, what does not.

A field works, or is ignored and named in a header, or is refused by its name; null is absent; and
no value of any kind is a fault of ours.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.inference.description import CHAT, COMPLETION, SHARED
from gateway.inference.support import IGNORED, REFUSED
from gateway.inference.wire import read_chat, read_completion
from tests.gateway.serving import BASE, KEY, serving

MESSAGES = [{"role": "user", "content": "Hello"}]
NAMED = {"type": "function", "function": {"name": "f"}}
TOOL = {**NAMED, "function": {"name": "f", "parameters": {"type": "object"}}}
NOT_TEXT: list[Any] = [1, True, [], {}]
NOT_NUMBERS: list[Any] = ["1", True, [], {}]
NOT_WHOLE: list[Any] = ["1", 1.5, True, [], {}]
NOT_FLAGS: list[Any] = ["true", 1, 0, [], {}]
NOT_OBJECTS: list[Any] = ["x", 1, True, []]
NOT_ARRAYS: list[Any] = ["x", 1, True, {}]


@dataclass(frozen=True)
class Row:
    name: str
    good: list[Any]
    wrong: list[Any]  # of another type
    outside: list[Any] = field(default_factory=list)  # of its limits
    path: str = ""  # where the fault lies, where that is deeper
    beside: dict[str, Any] = field(default_factory=dict)  # what it needs


BOTH = [
    Row("model", ["m", "ft:m:org:a/b"], NOT_TEXT, ["", "a\nb", "x" * 513]),
    Row("temperature", [0, 0.5, 2, 1e-300], NOT_NUMBERS, [-0.1, 2.1, 1e400]),
    Row("top_p", [0, 0.5, 1], NOT_NUMBERS, [-0.1, 1.1]),
    Row("top_k", [-1, 0, 40, 3.0], NOT_WHOLE, [-2, 2**31]),
    Row("min_p", [0, 0.5, 1], NOT_NUMBERS, [-0.1, 1.1]),
    Row("presence_penalty", [-2, 0, 2], NOT_NUMBERS, [-2.1, 2.1]),
    Row("frequency_penalty", [-2, 0, 2], NOT_NUMBERS, [-2.1, 2.1]),
    Row("repetition_penalty", [0.01, 1, 10], NOT_NUMBERS, [0, -1, 1e-300, 10.1]),
    Row("seed", [0, -1, 2**63 - 1, -(2**63)], NOT_WHOLE, [2**63]),
    Row("max_tokens", [1, 5, 10**12], NOT_WHOLE, [0, -1]),
    Row("min_tokens", [0, 3], NOT_WHOLE, [-1, 17], beside={"max_tokens": 16}),
    Row("n", [1, 128], NOT_WHOLE, [0, -1, 129]),
    Row("stop", ["x", "", ["a", ""], [], ["x"] * 16], [1, True, {}], [["x"] * 17, "x" * 1025]),
    Row("stop_token_ids", [[], [0, 5]], NOT_ARRAYS, [[1] * 257]),
    Row("stop_token_ids", [], [["x"], [True], [[]], [0.5]], [[-1], [2**31]], "stop_token_ids[0]"),
    Row("ignore_eos", [True, False], NOT_FLAGS),
    Row("include_stop_str_in_output", [True, False], NOT_FLAGS),
    Row("skip_special_tokens", [True, False], NOT_FLAGS),
    Row("return_token_ids", [True, False], NOT_FLAGS),
    Row("return_tokens_as_token_ids", [True, False], NOT_FLAGS),
    Row("truncate_prompt_tokens", [-1, 1, 100], NOT_WHOLE, [0, -2]),
    Row("logit_bias", [{}, {"5": -100, "6": 1.5}], NOT_OBJECTS,
        [{"x": 1}, {"-1": 1}, {"5.0": 1}, {"1" * 11: 1}, {str(i): 0 for i in range(1025)}]),
    Row("logit_bias", [], [{"5": "1"}, {"5": True}], [{"5": 101}], "logit_bias.5"),
    Row("allowed_token_ids", [[0], [1, 2]], NOT_ARRAYS, [[], [1] * 65_537]),
    Row("allowed_token_ids", [], [["x"], [True]], [[-1], [2**31]], "allowed_token_ids[0]"),
    Row("bad_words", [[], ["a", " b"]], NOT_ARRAYS, [["x"] * 257]),
    Row("bad_words", [], [[1], [[]], [None]], [[""], [" "], ["x" * 257]], "bad_words[0]"),
    Row("prompt_logprobs", [0, 20], NOT_WHOLE, [-1, 21]),
    Row("prompt_logprobs", [], [], [0], beside={"stream": True}),
    Row("stream", [True, False], NOT_FLAGS),
    Row("stream_options", [{}, {"include_usage": True}], NOT_OBJECTS, beside={"stream": True}),
    Row("stream_options", [], [], [{}, {"include_usage": True}]),  # without a stream
    Row("stream_options", [], [{"include_usage": v} for v in NOT_FLAGS], [],
        "stream_options.include_usage", {"stream": True}),
    Row("service_tier", ["auto", "default", "flex", "scale", "priority", "fast"], NOT_TEXT,
        ["gold", "", "Flex"]),
    Row("user", ["u", ""], NOT_TEXT, ["a\0", "a\n", "x" * 257, "x" * 513]),
    Row("safety_identifier", ["u"], NOT_TEXT, ["a\x7f", "x" * 257]),
    Row("metadata", [{}, {"a": "b"}], NOT_OBJECTS, [{str(i): "" for i in range(17)}]),
    Row("metadata", [], [{"a": 1}, {"a": {}}], [{"a": "b\n"}, {"a": "x" * 513}], "metadata.a"),
    Row("metadata", [{"k" * 64: "v" * 512}], [], [{"": "v"}, {"k" * 65: "v"}, {"a\nb": "v"}]),
    Row("response_format", [{"type": "text"}, {"type": "json_object"}], NOT_OBJECTS,
        [{}, {"type": "xml"}, {"type": "json_schema"}]),
    Row("structured_outputs", [{"json": {}}, {"choice": ["a"]}], NOT_OBJECTS,
        [{}, {"regex": "a", "choice": ["b"]}]),
    Row("structured_outputs", [], [{"regex": v} for v in NOT_TEXT], [],
        "structured_outputs.regex"),
    Row("guided_json", [{}, "{}", {"type": "object"}], [1, True, []], ["{"]),
    Row("guided_regex", ["a*"], NOT_TEXT, ["a" * 20_000]),
    Row("guided_regex", [], [], ["a"], beside={"guided_json": {}}),
    Row("guided_choice", [["a", "b"]], NOT_ARRAYS, [[], ["a", ""]]),
    Row("guided_grammar", ["start: /a/"], NOT_TEXT, ["a" * 200_000]),
    Row("guided_json_object", [True, False], NOT_FLAGS),
]  # fmt: skip
CHAT_ONLY = [
    Row("messages", [MESSAGES], ["x", 1, True, {}], [[], [MESSAGES[0]] * 10_001]),
    Row("messages", [], [[1], ["x"], [[]]], [], "messages[0]"),
    Row("max_completion_tokens", [1, 10**12], NOT_WHOLE, [0, -1]),
    Row("max_tokens", [5], [], [6], beside={"max_completion_tokens": 5}),
    Row("logprobs", [True, False], [2, "yes", [], {}]),
    Row("top_logprobs", [0, 20], NOT_WHOLE, [-1, 21], beside={"logprobs": True}),
    Row("top_logprobs", [], [], [0, 5]),  # without logprobs
    Row("add_generation_prompt", [True, False], NOT_FLAGS),
    Row("continue_final_message", [True, False], NOT_FLAGS),
    Row("chat_template_kwargs", [{}, {"enable_thinking": False}], NOT_OBJECTS),
    Row("tools", [[], [TOOL]], NOT_ARRAYS, [[TOOL, TOOL], [{}], [TOOL] * 129]),
    Row("tools", [], [["x"], [1]], [], "tools[0]"),
    Row("tool_choice", ["none", "auto"], [1, True, []], ["x", {}, "required"]),
    Row("tool_choice", ["required", NAMED], [], [{"type": "x"}], beside={"tools": [TOOL]}),
    Row("parallel_tool_calls", [True, False], NOT_FLAGS),
    Row("functions", [[], [TOOL["function"]]], NOT_ARRAYS, [[TOOL["function"]] * 129]),
    Row("functions", [], [["x"], [1]], [], "functions[0]"),
    Row("functions", [], [], [[{}]], "functions[0].name"),
    Row("functions", [], [], [[TOOL["function"]] * 2], "functions[1].name"),
    Row("functions", [], [], [[TOOL["function"]]], beside={"tools": [TOOL]}),
    Row("function_call", ["none", "auto"], [1, True, []], ["x", "required", {"name": "f"}]),
    Row("function_call", [{"name": "f"}], [], [], beside={"functions": [TOOL["function"]]}),
]
COMPLETION_ONLY = [
    Row("prompt", ["x", ["x", "y"], [1, 2], [[1], [2]]], [1, True, {}], [[], ["x"] * 257]),
    Row("prompt", [], [[True], [1.5], [{}]], [[-1], [2**31], [[]]], "prompt[0]"),
    Row("echo", [True, False], NOT_FLAGS),
    Row("max_tokens", [0], [], [], beside={"echo": True}),
    Row("logprobs", [0, 5, 20], [True, "5", 1.5, [], {}], [-1, 21]),
    Row("best_of", [1, 5], NOT_WHOLE, [0, 129]),
    Row("best_of", [3, 4], [], [2], beside={"n": 3}),
    Row("add_special_tokens", [True, False], NOT_FLAGS),
]
CASES = [
    *(pytest.param(read_chat, row, id=f"chat-{row.name}") for row in BOTH + CHAT_ONLY),
    *(pytest.param(read_completion, row, id=f"text-{row.name}") for row in BOTH + COMPLETION_ONLY),
]


def body(read, **fields):
    needed = {"messages": MESSAGES} if read is read_chat else {"prompt": "Hello"}
    return {"model": "m", **needed, **fields}


def refusal(read, **fields):
    with pytest.raises(InvalidRequest) as caught:
        read(body(read, **fields))
    json.dumps(caught.value.body()).encode()
    return caught.value


@pytest.mark.parametrize(("read", "row"), CASES)
def test_a_good_value_works(read, row):
    for value in row.good:
        asked = read(body(read, **{**row.beside, row.name: value}))
        assert row.name not in asked.options.ignored


@pytest.mark.parametrize(("read", "row"), CASES)
def test_null_is_absent(read, row):
    if row.name in ("model", "messages", "prompt"):
        assert refusal(read, **{row.name: None}).detail_code == "missing_required_parameter"
        return
    fields = {name: value for name, value in row.beside.items() if name != row.name}
    assert read(body(read, **fields, **{row.name: None})) == read(body(read, **fields))


@pytest.mark.parametrize(("read", "row"), CASES)
def test_a_wrong_type_and_a_value_outside_are_named(read, row):
    for value in row.wrong:
        error = refusal(read, **{**row.beside, row.name: value})
        assert (error.param, error.detail_code) == (row.path or row.name, "invalid_type"), value
    for value in row.outside:
        error = refusal(read, **{**row.beside, row.name: value})
        assert (error.param or "").startswith(row.path or row.name), value
        assert error.status == 400, value
        assert error.detail_code != "invalid_type", value


@pytest.mark.parametrize("read", [read_chat, read_completion])
@pytest.mark.parametrize("name", sorted(IGNORED))
def test_an_ignored_field_is_named(read, name):
    if read is read_chat and name in {row.name for row in CHAT_ONLY}:
        return  # works there
    for value in (1, "x", {"a": 1}, [None], False):
        assert read(body(read, **{name: value})).options.ignored == (name,)


@pytest.mark.parametrize("read", [read_chat, read_completion])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_field_is_refused_by_its_name(read, name):
    if name in {row.name for row in (CHAT_ONLY if read is read_chat else COMPLETION_ONLY)}:
        return  # works there
    for value in (1, "x", {"a": 1}, ["x"]):
        error = refusal(read, **{name: value})
        assert (error.param, error.detail_code) == (name, "unsupported_parameter")


def test_every_described_field_has_its_row():
    assert {row.name for row in BOTH} >= set(SHARED)
    assert {row.name for row in BOTH + CHAT_ONLY} >= set(CHAT)
    assert {row.name for row in BOTH + COMPLETION_ONLY} >= set(COMPLETION)


ODD: list[Any] = [True, -1, 1.5, 1e308, 2**62, "", "x", "a\0", [], [None], [{}], {}, {"": 1}]


async def told(server, path, fields):
    """Status and body, without a connection: there are thousands of these."""
    sent = []
    received = iter([{"type": "http.request", "body": json.dumps(fields).encode()}])

    async def receive():
        return next(received, None) or await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await server.routes(scope, receive, send)
    start, *rest = sent
    return start["status"], b"".join(message["body"] for message in rest)


@pytest.mark.parametrize(
    ("path", "needed", "described"),
    [("/v1/chat/completions", {"messages": MESSAGES}, {*SHARED, *CHAT}),
     ("/v1/completions", {"prompt": "Hello"}, {*SHARED, *COMPLETION})],
    ids=["chat", "text"],
)  # fmt: skip
async def test_no_value_of_any_field_is_a_fault_of_ours(tmp_path, path, needed, described):
    """Through everything behind the wire: an answer, or a 400 that names a field."""
    async with serving(tmp_path) as server:
        server.say("Hi")
        for name in sorted({*described, *IGNORED, *REFUSED, "zebra"}):
            for value in ODD:
                asked = {"model": BASE, **needed, "max_tokens": 2, name: value}
                status, answer = await told(server, path, asked)
                assert status in (200, 400, 404), (name, value, answer)
                if status == 400:
                    assert json.loads(answer)["error"]["param"], (name, value, answer)
        assert server.recorder.ended


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
DEEP = {
    "model": BASE,
    "max_tokens": 2,
    "messages": [
        {"role": "system", "content": "Be kind.", "name": "s"},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "call_1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
                                                "parameters": SCHEMA, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "stream_options": {"include_usage": True},
    "stream": True,
    "metadata": {"a": "b"},
    "logit_bias": {"5": 1},
    "stop": ["x"],
    "chat_template_kwargs": {"mood": {"deep": ["x"]}},
}  # fmt: skip


def places(value, path=()):
    """Every place in a value, itself first."""
    yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from places(part, (*path, key))


def put(value, path, odd):
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], odd)
    return copy


async def test_no_value_at_any_depth_is_a_fault_of_ours(tmp_path):
    async with serving(tmp_path, context=2048) as server:
        server.say("Hi")
        status, answer = await told(server, "/v1/chat/completions", DEEP)
        assert status == 200, answer
        for path in places(DEEP):
            for odd in (*ODD, None, {"type": "x"}) if path else ():
                status, answer = await told(server, "/v1/chat/completions", put(DEEP, path, odd))
                assert status in (200, 400, 404), (path, odd, answer)
                if status == 400:
                    assert json.loads(answer)["error"]["param"], (path, odd, answer)
