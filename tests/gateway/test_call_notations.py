"""Mistral's and Qwen3-Coder's calls: read however they are cut, held to what is asked."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inference.coder_calls import CoderReader, typed
from gateway.inference.fields import Fields
from gateway.inference.mistral_calls import MistralReader
from gateway.inference.tool_style import STYLES, detected
from gateway.inference.tools import read_tools
from tests.gateway.serving import BASE, CHATML, ask, post, serving
from tests.gateway.test_call_reader import ids, read
from tests.gateway.test_tools import ENDS, GOES_ON, NO, judged, named

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "more": {"type": "object"},
    "unit": {"enum": ["C", "F"]},
    "maybe": {"type": ["string", "null"]},
    "referred": {"$ref": "#/$defs/number"},
    "either": {"anyOf": [{"type": "number"}, {"type": "array"}]},
}
SCHEMA = {
    "type": "object", "properties": PROPERTIES, "required": ["city"],
    "$defs": {"number": {"type": "number"}},
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
OTHER = {"type": "function", "function": {"name": "g"}}


def box(**more):
    return read_tools(Fields({"tools": [TOOL, OTHER], **more}))


def mistral():
    return MistralReader(ids())


def coder():
    return CoderReader(box(), ids())


def written(**values):
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


MISTRAL = [
    ("Hello [TOOL] there [", "Hello [TOOL] there [", []),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]', "", [("f", '{"x": 1}')]),
    ('So.\n[TOOL_CALLS][{"name":"f","arguments":{}}, {"name":"g","arguments":{"a":[1]}}]', "So.",
     [("f", "{}"), ("g", '{"a":[1]}')]),
    ('[TOOL_CALLS] [{"arguments": {"x": "]"}, "name": "f", "id": "abc"}]', "",
     [("f", '{"x": "]"}')]),
    ('[TOOL_CALLS]f[ARGS]{"x": "}[TOOL_CALLS]"}', "", [("f", '{"x": "}[TOOL_CALLS]"}')]),
    ('[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]a1b2[ARGS]{}', "",
     [("f", '{"x": 1}'), ("g", "{}")]),
    ('[TOOL_CALLS]f{"x": {"y": 2}} done', " done", [("f", '{"x": {"y": 2}}')]),
    ('[TOOL_CALLS]f[ARGS]{"x": ', "", [("f", '{"x": ')]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {"x"', "", [("f", '{"x"')]),
    ("[TOOL_CALLS]nothing", "[TOOL_CALLS]nothing", []),
    ('häßlich 🙂[TOOL_CALLS]f[ARGS]{"ü": "中"}', "häßlich 🙂", [("f", '{"ü": "中"}')]),
]  # fmt: skip
CODER = [
    ("a < b <tool_ <func", "a < b <tool_ <func", []),
    (written(city="Paris"), "", [("f", {"city": "Paris"})]),
    ("Let me see.\n" + written(city="Paris", days="3", exact="True"), "Let me see.",
     [("f", {"city": "Paris", "days": 3, "exact": True})]),
    (written(city="a\nb\n\n c", more='{"x": [1, null]}', unit="C"), "",
     [("f", {"city": "a\nb\n\n c", "more": {"x": [1, None]}, "unit": "C"})]),
    (written(city="7", days="many", maybe="null", referred="2.5", either="[1]"), "",
     [("f", {"city": "7", "days": "many", "maybe": None, "referred": 2.5, "either": [1]})]),
    (written(city="<b>x</b> {", unknown="7", maybe="7"), "",
     [("f", {"city": "<b>x</b> {", "unknown": "7", "maybe": "7"})]),
    (written(city="x") + "\n" + written(city="y"), "",
     [("f", {"city": "x"}), ("f", {"city": "y"})]),
    ("<tool_call>\n<function=f>\n</function>\n</tool_call> end", " end", [("f", {})]),
    ("<function=f>\n<parameter=city>x</parameter>\n</function>", "", [("f", {"city": "x"})]),
    ("<tool_call>\nnot a call", "<tool_call>\nnot a call", []),
    ("<tool_call>\n<function=", "<function=", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown", "calls"), MISTRAL, ids=range(len(MISTRAL)))
def test_mistrals_calls_are_read_whole_and_in_any_two_pieces(text, shown, calls):
    for cut in range(len(text) + 1):
        assert read(mistral(), [text[:cut], text[cut:]]) == (shown, calls), cut
    assert read(mistral(), list(text)) == (shown, calls)


@pytest.mark.parametrize(("text", "shown", "calls"), CODER, ids=range(len(CODER)))
def test_coders_calls_are_read_whole_and_in_any_two_pieces(text, shown, calls):
    for cut in range(len(text) + 1):
        said, found = read(coder(), [text[:cut], text[cut:]])
        assert (said, [(name, json.loads(given)) for name, given in found]) == (shown, calls), cut
    said, found = read(coder(), list(text))
    assert (said, [(name, json.loads(given)) for name, given in found]) == (shown, calls)


def test_a_call_that_is_cut_short_keeps_what_was_complete():
    text = written(city="Paris", days="3")
    assert read(coder(), [text[: text.index("3")]]) == ("", [("f", '{"city": "Paris"')])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_text_cut_anywhere_gives_the_same(data):
    bits = ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=city>",
            "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[{", '{"name": "f"', ', "arguments": {',
            '"x": "', "}", "}]", "\n", " ", "<", "[", "f", "🙂"]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    for make in (mistral, coder):
        assert read(make(), pieces) == read(make(), [text])


def test_values_that_json_does_not_have_stay_text():
    for text in ("NaN", "Infinity", "1e999", "{", "[" * 5000):
        assert typed(text, SCHEMA, "referred") == text


@pytest.mark.parametrize(
    ("style", "more", "text", "verdict"),
    [
        ("qwen3_coder", {}, "Just text, a < b.", ENDS),
        ("qwen3_coder", {}, "So:\n" + written(city="Paris", days="3"), ENDS),
        ("qwen3_coder", {}, written(city="Paris", days='"3"'), NO),
        ("qwen3_coder", {}, written(days="3"), NO),
        ("qwen3_coder", {}, written(city="a < b\n</par", unit="C"), ENDS),
        ("qwen3_coder", {}, written(city="x", unit="K"), NO),
        ("qwen3_coder", {}, written(city="x", referred="2.5"), ENDS),
        ("qwen3_coder", {"tool_choice": "required"}, "text", NO),
        ("qwen3_coder", {"tool_choice": named("g")}, written(city="x"), NO),
        ("mistral", {"tool_choice": "required"}, "text", NO),
        ("mistral", {"tool_choice": "required"}, '[TOOL_CALLS] [{"name": "f", ', GOES_ON),
        ("mistral", {"tool_choice": "required"},
         '[TOOL_CALLS] [{"name": "g", "arguments": {}}, {"name": "g", "arguments": {}}]', ENDS),
        ("mistral", {"tool_choice": named("f")}, '[TOOL_CALLS] [{"name": "g"', NO),
    ],
)  # fmt: skip
def test_what_is_enforced_is_the_models_own_notation(style, more, text, verdict):
    assert judged(STYLES[style].structure(box(**more), None), text) == verdict


def test_what_mistrals_notation_does_not_enforce_is_named():
    style = STYLES["mistral"]
    assert style.structure(box(), None) is None
    assert style.unheld(box()) == ("tools[0].function.strict",)
    more = box(parallel_tool_calls=False)
    assert style.unheld(more) == ("tools[0].function.strict", "parallel_tool_calls")
    assert style.unheld(box(tool_choice="required")) == ()


def test_a_template_tells_the_notation():
    assert detected("{{ '[TOOL_CALLS]' }}") is STYLES["mistral"]
    assert detected("<tool_call>\n<function=x>\n<parameter=y>") is STYLES["qwen3_coder"]


async def test_control_tokens_are_spelled_for_the_reader_alone(tmp_path):
    """The test's vocabulary has <|endoftext|> where Mistral's has [TOOL_CALLS]."""
    style = STYLES["mistral"]
    assert style.marks
    asked = {"model": BASE, "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    template = "{{ tools }}" + CHATML
    async with serving(
        tmp_path, template=template, context=4096, tool_call_parser="mistral"
    ) as server:
        server.say('[TOOL_CALLS]f[ARGS]{"city": "Paris"}')
        got = await ask(server.port, post(asked))
        (choice,) = got.json["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"city": "Paris"}'}
        assert got.headers["x-ignored-params"] == "tools[0].function.strict"
        tokenizer = server.tokenizer
        assert tokenizer.spelling(["<|endoftext|>"])(0) == b"<|endoftext|>"
        assert tokenizer.spelling(["<|endoftext|>"])(1) == b""
