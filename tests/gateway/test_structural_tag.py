"""Structural tags: free text, and between the tags what their schemas allow."""

import json

import pytest

from gateway.errors import InvalidRequest
from gateway.inference.fields import Fields
from gateway.inference.grammars import GrammarCheck
from gateway.inference.structure import read_structure
from tests.gateway.serving import BASE, ask, post, serving
from tests.gateway.test_tools import ENDS, GOES_ON, NO, judged

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TAGS = [
    {"begin": "<function=weather>", "schema": CITY, "end": "</function>"},
    {"begin": "<function=time>", "schema": {"type": "object"}, "end": "</function>"},
]
OLDER = {"type": "structural_tag", "structures": TAGS, "triggers": ["<function="]}
GOOD = '<function=weather>{"city": "Paris"}</function>'


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(value):
    return {"type": "json_schema", "json_schema": value}


THINKS = {
    "type": "structural_tag",
    "format": {"type": "sequence", "elements": [
        tag("<think>", {"type": "any_text"}, "</think>"),
        {"type": "or", "elements": [
            schema(CITY), {"type": "const_string", "value": "none"},
        ]},
    ]},
}  # fmt: skip


def triggered(**more):
    return {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<f"],
        "tags": [tag("<f1>", schema(CITY), "</f1>"), tag("<f2>", {"type": "any_text"}, "</f2>")],
        **more,
    }}  # fmt: skip


def of(value):
    return read_structure(Fields({"response_format": value}))


@pytest.mark.parametrize(
    ("value", "text", "verdict"),
    [
        (OLDER, "", ENDS),
        (OLDER, "Just text, a < b.", ENDS),
        (OLDER, f"So: {GOOD} and {GOOD}.", ENDS),
        (OLDER, "<function=", GOES_ON),
        (OLDER, "<function=nobody>", NO),
        (OLDER, '<function=weather>{"city": 7', NO),
        (OLDER, "<function=time>{}</function> <function=time>{", GOES_ON),
        (THINKS, '<think>a < b\n</thin</think>{"city": "Paris"}', ENDS),
        (THINKS, "<think></think>none", ENDS),
        (THINKS, "<think>well</think>maybe", NO),
        (THINKS, "none", NO),
        (triggered(), '<f1>{"city": "x"}</f1> text <f2>any < text</f2>', ENDS),
        (triggered(), "text", ENDS),
        (triggered(), "<f3>", NO),
        (triggered(at_least_one=True), "text", GOES_ON),
        (triggered(at_least_one=True), "text <f2>x</f2> more", ENDS),
        (triggered(stop_after_first=True), "text <f2>x</f2> more", NO),
        (triggered(stop_after_first=True), "text <f2>x</f2>", ENDS),
    ],
)
def test_tags_are_held_to_their_schemas_and_text_is_free(value, text, verdict):
    assert judged(of(value), text) == verdict


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({**OLDER, "structures": []}, "structures"),
        ({**OLDER, "structures": ["x"]}, "structures[0]"),
        ({**OLDER, "structures": [{"schema": {}, "end": ""}]}, "structures[0].begin"),
        ({**OLDER, "structures": [{"begin": "[f]", "schema": {}, "end": ""}]},
         "structures[0].begin"),
        ({**OLDER, "structures": [{**TAGS[0], "schema": 7}]}, "structures[0].schema"),
        ({**OLDER, "triggers": []}, "triggers"),
        ({**OLDER, "triggers": [""]}, "triggers[0]"),
        ({**OLDER, "triggers": ["<f", "<function="]}, "triggers[1]"),
        ({"type": "structural_tag", "format": {"type": "grammar"}}, "format.type"),
        ({"type": "structural_tag", "format": {"type": "or", "elements": [{}]}},
         "format.elements[0].type"),
        ({"type": "structural_tag", "format": {"type": "const_string", "value": ""}},
         "format.value"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(value, param):
    with pytest.raises(InvalidRequest) as caught:
        of(value)
    assert caught.value.param == f"response_format.{param}"


async def test_a_schema_that_cannot_be_followed_is_named_by_its_tag():
    check = GrammarCheck()
    faulty = {**TAGS[1], "schema": {"type": "object", "properties": {"a": {"not": {}}}}}
    with pytest.raises(InvalidRequest) as caught:
        await check.require(of({**OLDER, "structures": [TAGS[0], faulty]}))
    assert caught.value.param == "response_format.structures[1].schema.properties.a"
    check.close()


async def test_it_reaches_the_engine_by_either_field(tmp_path):
    asked = {"model": BASE, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with serving(tmp_path) as server:
        for more in (
            {"response_format": OLDER},
            {"structured_outputs": {"structural_tag": json.dumps(OLDER)}},
            {"structured_outputs": {"structural_tag": triggered()}},
        ):
            got = await ask(server.port, post({**asked, **more}))
            assert got.status == 200, got.body
            assert "start:" in server.last.grammar
