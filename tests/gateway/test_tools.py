"""Tools: read and checked, shown to the model, its calls answered in OpenAI's shape."""

import json

import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.inference.calling import CallSupport
from gateway.inference.fields import Fields
from gateway.inference.grammars import Compiler, GrammarCheck
from gateway.inference.structure import read_structure
from gateway.inference.template import ChatTemplate
from gateway.inference.tool_prompt import told
from gateway.inference.tool_style import STYLES, detected
from gateway.inference.tools import MOST_TOOLS, read_tools
from tests.gateway.serving import BASE, CHATML, ask, post, serving

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": BASE, "messages": HELLO}
QWEN = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}</tools><tool_call>{% endif %}" + CHATML
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def tool(name="weather", **function):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}},
                  "required": ["city"], "additionalProperties": False}  # fmt: skip
    return {
        "type": "function",
        "function": {"name": name, "description": "Knows.", "parameters": parameters, **function},
    }


def named(name):
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool(), tool("time", parameters={"type": "object", "properties": {}})]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": "x"}, "tools", "invalid_type"),
        ({"tools": [tool(f"f{i}") for i in range(MOST_TOOLS + 1)]}, "tools", "invalid_value"),
        ({"tools": ["x"]}, "tools[0]", "invalid_type"),
        ({"tools": [{}]}, "tools[0].type", "missing_required_parameter"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name",
         "missing_required_parameter"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [tool(description=3)]}, "tools[0].function.description", "invalid_type"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "invalid_type"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters",
         "invalid_value"),
        ({"tools": [tool(strict="no")]}, "tools[0].function.strict", "invalid_type"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": 1}, "tool_choice", "invalid_type"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type", "missing_required_parameter"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type",
         "unsupported_parameter"),
        ({"tools": TOOLS, "tool_choice": named("nobody")}, "tool_choice.function.name",
         "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [], "tool_choice": named("weather")}, "tool_choice", "invalid_value"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(body, param, code):
    with pytest.raises(InvalidRequest) as caught:
        read_tools(Fields(body))
    assert (caught.value.param, caught.value.detail_code) == (param, code)


@pytest.mark.parametrize(
    ("choice", "names", "required", "parallel"),
    [
        (None, {"weather", "time"}, False, True),
        ("auto", {"weather", "time"}, False, True),
        ("required", {"weather", "time"}, True, True),
        (named("time"), {"time"}, True, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("time")]}},
         {"time"}, True, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [named("time")]}, {"time"}, False,
         True),
    ],
)  # fmt: skip
def test_a_choice_narrows_what_may_be_called_and_shows_all(choice, names, required, parallel):
    box = read_tools(Fields({"tools": TOOLS, "tool_choice": choice}))
    assert (box.names, box.required, box.parallel) == (names, required, parallel)
    assert [shown["function"]["name"] for shown in box.shown] == ["weather", "time"]


@pytest.mark.parametrize(
    "body",
    [{}, {"tools": []}, {"tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "none"},
     {"tools": [], "tool_choice": "none", "parallel_tool_calls": True}],
)  # fmt: skip
def test_without_tools_nothing_may_be_called(body):
    fields = Fields(body)
    assert read_tools(fields) is None
    assert not fields.unread


def test_the_style_is_found_in_the_template_or_given():
    assert detected(QWEN) is STYLES["hermes"]
    assert detected("{{ tools }}<|python_tag|>") is STYLES["llama3_json"]
    assert detected("[AVAILABLE_TOOLS]{{ tools }}") is None
    assert detected("{{ tools }}<tool_call>\n<function=name>") is None
    box = read_tools(Fields({"tools": TOOLS}))
    mistral = ChatTemplate("[AVAILABLE_TOOLS]{{ tools }}", {})
    with pytest.raises(UnsupportedParameter, match="--tool-call-parser"):
        CallSupport(mistral).calling(box)
    assert CallSupport(mistral, "llama3_json").calling(box).style is STYLES["llama3_json"]
    assert CallSupport(ChatTemplate(CHATML, {})).calling(box).style is STYLES["hermes"]


def test_a_template_without_tools_is_told_in_words():
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "Zürich"}}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        {"role": "tool", "content": "warm", "tool_call_id": "2"},
        {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    plain = told(messages, [tool()])
    assert [message["role"] for message in plain] == ["system", "user", "assistant", "user", "user"]
    assert '"name": "weather"' in plain[0]["content"]
    assert plain[2]["content"] == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    )
    assert plain[3]["content"].count("<tool_response>") == 2
    assert told(messages[:1], ()) == messages[:1]
    system = [{"role": "system", "content": "Be kind."}, *messages[:1]]
    assert told(system, [tool()])[0]["content"].startswith("Be kind.\n\nYou may call")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "body",
    [
        {"tools": [tool(strict=True), TOOLS[1]]},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": named("time")},
        {"tools": [{"type": "function", "function": {"name": "bare"}}], "tool_choice": "required"},
    ],
)
async def test_what_is_enforced_is_a_grammar_that_can_be_followed(style, body):
    check = GrammarCheck()
    box = read_tools(Fields(body))
    structure = STYLES[style].structure(box, None)
    assert structure or STYLES[style].unheld(box)
    assert structure is None or await check.require(structure)
    check.close()


ENDS, GOES_ON, NO = "it may end", "it goes on", "no"


def judged(structure, text):
    """What a grammar says of a text: whether it may end there, go on, or is none of its own."""
    compiler = Compiler()
    matcher = compiler._matcher(compiler.compile(structure).text)
    if matcher.try_consume_tokens(list(text.encode())) < len(text.encode()):
        return NO
    return ENDS if matcher.is_accepting() else GOES_ON


HERMES, LLAMA = STYLES["hermes"], STYLES["llama3_json"]
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BARE = '{"name": "weather", "parameters": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("style", "more", "text", "verdict"),
    [
        (HERMES, {}, "", ENDS),
        (HERMES, {}, "Just text, a < b.", ENDS),
        (HERMES, {}, "I look.\n" + ONE, ENDS),
        (HERMES, {}, ONE + "\n" + ONE + " done", ENDS),
        (HERMES, {}, "<tool_call>\n{", GOES_ON),
        (HERMES, {}, "<tool_call> anything", NO),
        (HERMES, {}, ONE.replace("weather", "nobody"), NO),
        (HERMES, {}, ONE.replace('"Paris"', "7"), NO),
        (HERMES, {"parallel_tool_calls": False}, ONE, ENDS),
        (HERMES, {"parallel_tool_calls": False}, ONE + "\n", NO),
        (HERMES, {"tool_choice": "required"}, "", GOES_ON),
        (HERMES, {"tool_choice": "required"}, "text", NO),
        (HERMES, {"tool_choice": "required"}, ONE + "\n" + ONE, ENDS),
        (HERMES, {"tool_choice": named("time")}, ONE, NO),
        (LLAMA, {}, "Just text {with braces}", ENDS),
        (LLAMA, {}, BARE, ENDS),
        (LLAMA, {}, BARE + "; " + BARE, ENDS),
        (LLAMA, {}, '{"name": "nobody"', NO),
        (LLAMA, {}, "{text", NO),
        (LLAMA, {"parallel_tool_calls": False}, BARE + ";", NO),
        (LLAMA, {"tool_choice": "required"}, "text", NO),
        (LLAMA, {"tool_choice": named("weather")}, BARE.replace('"Paris"', "null"), NO),
    ],
)
def test_what_is_enforced_is_the_models_own_notation(style, more, text, verdict):
    box = read_tools(Fields({"tools": [tool(strict=True), TOOLS[1]], **more}))
    assert judged(style.structure(box, None), text) == verdict


def test_nothing_is_enforced_that_was_not_asked_for():
    assert STYLES["hermes"].structure(read_tools(Fields({"tools": TOOLS})), None) is None


async def test_the_tool_at_fault_is_named():
    check = GrammarCheck()
    faulty = tool("faulty", strict=True, parameters={
        "type": "object", "properties": {"a": {"not": {}}}})  # fmt: skip
    box = read_tools(Fields({"tools": [tool(), faulty], "tool_choice": "required"}))
    with pytest.raises(InvalidRequest) as caught:
        await check.require(STYLES["hermes"].structure(box, None))
    assert caught.value.param == "tools[1].function.parameters.properties.a"
    check.close()


async def test_an_answer_may_be_held_to_a_schema_beside_tools():
    check = GrammarCheck()
    box = read_tools(Fields({"tools": TOOLS}))
    schema = read_structure(Fields({"guided_json": {"type": "object"}}))
    assert await check.require(STYLES["hermes"].structure(box, schema))
    for style, text in (("hermes", {"guided_regex": "a"}), ("llama3_json", {"guided_json": {}})):
        with pytest.raises(InvalidRequest, match="exclude each other"):
            STYLES[style].structure(box, read_structure(Fields(text)))
    check.close()


@pytest.mark.parametrize("template", [CHATML, QWEN], ids=["told in words", "knows tools"])
async def test_a_call_is_answered_in_openais_shape(tmp_path, template):
    async with serving(tmp_path, template=template, context=2048) as server:
        server.say("One moment.\n" + CALL)
        got = await ask(server.port, post({**ASKED, "tools": TOOLS, "max_tokens": 200}))
        assert got.status == 200, got.body
        (choice,) = got.json["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "One moment."
        (call,) = choice["message"]["tool_calls"]
        assert call["id"].startswith("call_")
        assert call["type"] == "function"
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
        assert server.last.grammar is None
        asked = server.tokenizer_text(server.last.tokens)
        assert '"name": "weather"' in asked
        server.say(CALL)
        got = await ask(server.port, post({**ASKED, "tools": TOOLS, "tool_choice": "required"}))
        assert got.json["choices"][0]["message"]["content"] is None
        assert "weather" in server.last.grammar


async def test_a_streamed_call_has_its_id_and_name_once_and_arguments_in_pieces(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        server.say("Yes.\n" + CALL + "\n" + CALL.replace("weather", "time"))
        stream = await server.client().chat.completions.create(
            **ASKED, tools=TOOLS, stream=True, n=2, max_tokens=300
        )
        text, calls, reasons = {0: "", 1: ""}, {0: [], 1: []}, {}
        async for chunk in stream:
            (choice,) = chunk.choices
            text[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
            for gained in choice.delta.tool_calls or []:
                mine = calls[choice.index]
                if gained.id:
                    assert gained.index == len(mine)
                    assert (gained.type, gained.function.arguments) == ("function", "")
                    mine.append([gained.id, gained.function.name, []])
                else:
                    assert gained.function.name is None
                    mine[gained.index][2].append(gained.function.arguments)
        for index in (0, 1):
            assert (text[index], reasons[index]) == ("Yes.", "tool_calls")
            names = [name for _, name, _ in calls[index]]
            assert names == ["weather", "time"]
            for _, _, pieces in calls[index]:
                assert len(pieces) > 1
                assert json.loads("".join(pieces)) == {"city": "Paris"}
        ids = [call[0] for mine in calls.values() for call in mine]
        assert len(set(ids)) == 4


class Weather(BaseModel):
    """The weather of a city."""

    city: str


class Order(BaseModel):
    names: list[str]
    note: str | None


async def test_the_clients_own_parsing_understands_both(tmp_path):
    async with serving(tmp_path, context=4096) as server:
        client = server.client().chat.completions
        server.say('{"names": ["x"], "note": null}')
        answer = await client.parse(**ASKED, response_format=Order)
        assert answer.choices[0].message.parsed == Order(names=["x"], note=None)
        assert "names" in server.last.grammar
        server.say(CALL.replace("weather", "Weather"))
        answer = await client.parse(**ASKED, tools=[pydantic_function_tool(Weather)])
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.parsed_arguments == Weather(city="Paris")
        assert "Weather" in server.last.grammar


async def test_a_conversation_with_calls_goes_on(tmp_path):
    async with serving(tmp_path, context=2048) as server:
        server.say("It is sunny.")
        messages = [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]  # fmt: skip
        got = await ask(server.port, post({**ASKED, "messages": messages, "tools": TOOLS}))
        assert got.json["choices"][0]["message"]["content"] == "It is sunny."
        assert got.json["choices"][0]["finish_reason"] == "stop"
        assert "tool_calls" not in got.json["choices"][0]["message"]
        text = server.tokenizer_text(server.last.tokens)
        assert "<tool_response>\nsunny\n</tool_response>" in text


ODD = [
    '{"a": "\\ud83d"}',
    '{"a": NaN}',
    '{"a": 1e999}',
    "9" * 5000,
    "[" * 5000,
    '{"a":' * 980 + "1" + "}" * 980,
]


@pytest.mark.parametrize("template", [CHATML, QWEN], ids=["told in words", "knows tools"])
async def test_arguments_that_are_no_json_are_shown_as_they_were(tmp_path, template):
    async with serving(tmp_path, template=template, context=1 << 15) as server:
        for arguments in ODD:
            call = {"id": "call_1", "type": "function",
                    "function": {"name": "weather", "arguments": arguments}}  # fmt: skip
            messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
            asked = {**ASKED, "messages": messages, "tools": TOOLS, "max_tokens": 1}
            got = await ask(server.port, post(asked))
            assert got.status in (200, 400), (arguments[:20], got.body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_a_model_writes_badly_is_answered_all_the_same(tmp_path, stream):
    """What it wrote as a string could hold half a character."""
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        for arguments in (r'"\ud83d"', r'"{\"a\": \"\\ud83d\"}"', r'{"a": "\ud83d"}'):
            server.say(CALL.replace('{"city": "Paris"}', arguments))
            asked = {**ASKED, "tools": TOOLS, "max_tokens": 200, "stream": stream}
            got = await ask(server.port, post(asked))
            assert got.status == 200, (arguments, got.body)
            assert b'"error"' not in got.body
            assert b'"tool_calls"' in got.body


async def test_a_call_that_a_limit_cuts_says_length(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        tokens = server.tokenizer.encode(CALL, add_special=False)
        server.script(lambda submit: tokens[: submit.max_tokens])
        got = await ask(server.port, post({**ASKED, "tools": TOOLS, "max_tokens": len(tokens) - 9}))
        (choice,) = got.json["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


async def test_log_probabilities_of_calls_are_told_too(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        server.say(CALL)
        body = {**ASKED, "tools": TOOLS, "logprobs": True}
        got = await ask(server.port, post(body))
        told_tokens = [item["token"] for item in got.json["choices"][0]["logprobs"]["content"]]
        assert "".join(told_tokens) == CALL


async def test_completions_know_no_tools(tmp_path):
    async with serving(tmp_path) as server:
        body = {"model": BASE, "prompt": "x", "tools": TOOLS}
        got = await ask(server.port, post(body, path="/v1/completions"))
        assert (got.status, got.json["error"]["param"]) == (400, "tools")
