"""What an answer must match: read from every field that says so, and checked before all else."""

import asyncio
import json
import re
from threading import Event

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.protocol import RefusalCode
from gateway.errors import InvalidRequest, Unavailable
from gateway.inference import grammars as module
from gateway.inference.fields import Fields
from gateway.inference.grammars import Grammar, GrammarCheck
from gateway.inference.schema import MOST_BYTES, MOST_DEPTH
from gateway.inference.structure import Notation, Structure, read_structure
from gateway.inference.wire import read_chat, read_completion
from tests.gateway.serving import BASE, ask, post, serving

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
HELLO = [{"role": "user", "content": "Hello"}]


def named(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def read(**body):
    return read_structure(Fields(body))


@pytest.fixture
def check(monkeypatch):
    """With as much time as a busy machine needs: what is refused is refused for what it is."""
    monkeypatch.setattr("gateway.inference.grammars.SECONDS", 120.0)
    check = GrammarCheck()
    yield check
    check.close()


async def refusal(check, **body):
    with pytest.raises(InvalidRequest) as caught:
        await check.require(read(**body))
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structures",
         "missing_required_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema",
         "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
         "response_format.json_schema.name", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
         "response_format.json_schema.name", "invalid_value"),
        ({"response_format": named([])}, "response_format.json_schema.schema", "invalid_type"),
        ({"response_format": named({}, strict="yes")}, "response_format.json_schema.strict",
         "invalid_type"),
        ({"guided_regex": 3}, "guided_regex", "invalid_type"),
        ({"guided_choice": "a"}, "guided_choice", "invalid_type"),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "invalid_type"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "invalid_value"),
        ({"guided_json": "{"}, "guided_json", "invalid_value"),
        ({"guided_json": 3}, "guided_json", "invalid_type"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag",
         "invalid_value"),
        ({"structured_outputs": {"structural_tag": "[]"}}, "structured_outputs.structural_tag",
         "invalid_type"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice",
         "invalid_value"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "invalid_value"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice",
         "invalid_value"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(body, param, code):
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert (caught.value.param, caught.value.detail_code) == (param, code)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"guided_json": None, "guided_regex": None, "structured_outputs": None},
        {"guided_json_object": False},
        {"guided_decoding_backend": "xgrammar"},
    ],
)
def test_nothing_asked_is_nothing_held(body):
    fields = Fields(body)
    assert read_structure(fields) is None
    assert not fields.unread


@pytest.mark.parametrize(
    ("body", "path", "notation"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", Notation.SCHEMA),
        ({"response_format": named(PERSON, strict=True, description="One.")},
         "response_format.json_schema.schema", Notation.SCHEMA),
        ({"guided_json": PERSON}, "guided_json", Notation.SCHEMA),
        ({"guided_json": json.dumps(PERSON)}, "guided_json", Notation.SCHEMA),
        ({"guided_json_object": True}, "guided_json_object", Notation.SCHEMA),
        ({"guided_regex": r"\d{3}/[a-z]+"}, "guided_regex", Notation.REGEX),
        ({"guided_choice": ["yes", 'n"o\n', "vielleicht 🙂"]}, "guided_choice", Notation.LARK),
        ({"guided_grammar": 'root ::= "a" [0-9]+'}, "guided_grammar", Notation.GRAMMAR),
        ({"guided_grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]+/'}, "guided_grammar",
         Notation.GRAMMAR),
        ({"structured_outputs": {"json": PERSON}}, "structured_outputs.json", Notation.SCHEMA),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice", Notation.LARK),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
         "structured_outputs.json_object", Notation.SCHEMA),
    ],
)  # fmt: skip
async def test_every_way_to_say_it_is_understood(check, body, path, notation):
    fields = Fields(body)
    structure = read_structure(fields)
    assert (structure.path, structure.notation) == (path, notation)
    assert not fields.unread
    grammar = await check.require(structure)
    assert grammar.text
    assert grammar.ignored == ()


def test_white_space_is_bounded_unless_the_client_says_otherwise():
    assert "{0,40}" in read(guided_json={}).source
    assert json.loads(read(guided_json={}, guided_whitespace_pattern="x?").source) == {
        "x-guidance": {"whitespace_pattern": "x?", "lenient": False}
    }
    bare = read(structured_outputs={"json": {}, "disable_any_whitespace": True})
    assert json.loads(bare.source)["x-guidance"]["whitespace_pattern"] == ""


def test_a_client_cannot_set_the_compilers_own_options():
    schema = {"type": "object", "x-guidance": {"lenient": True}, "properties": {
        "a": {"x-guidance": {"lenient": True}, "type": "string"}}}  # fmt: skip
    structure = read(guided_json=schema)
    assert json.loads(structure.source)["x-guidance"]["lenient"] is False
    assert structure.schema.schema["properties"]["a"] == {"type": "string"}


async def test_the_part_of_a_schema_at_fault_is_named(check):
    schema = {
        "type": "object",
        "properties": {
            "fine": {"$ref": "#/$defs/fine"},
            "list": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"not": {}}]}},
        },
        "$defs": {"fine": {"type": "string"}},
    }
    error = await refusal(check, response_format=named(schema, strict=True))
    assert error.param == "response_format.json_schema.schema.properties.list.items.anyOf[1]"
    assert "not" in error.message
    assert error.status == 400


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"guided_regex": "[a-z"}, "guided_regex", "unclosed"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
        ({"guided_grammar": "root ::= (((("}, "guided_grammar", "line 1"),
        ({"guided_grammar": "\\"}, "guided_grammar", ""),
        ({"guided_json": {"type": "strange"}}, "guided_json", "strange"),
        ({"guided_json": {"$ref": "#/$defs/nobody"}}, "guided_json", "nobody"),
        ({"guided_json": {"$ref": "http://127.0.0.1:9/schema"}}, "guided_json", "127.0.0.1"),
        ({"guided_json": {"properties": {"n": {"minimum": 5, "maximum": 3, "type": "integer"}},
                          "required": ["n"], "type": "object"}},
         "guided_json.properties.n", "minimum"),
        ({"guided_json": {"type": "string", "pattern": "(a"}}, "guided_json", "unclosed"),
    ],
)  # fmt: skip
async def test_what_cannot_be_followed_is_refused_with_the_reason(check, body, param, reason):
    error = await refusal(check, **body)
    assert error.param == param
    assert reason in error.message
    assert len(error.message) < 700


async def test_of_a_schema_that_is_not_strict_what_cannot_be_enforced_is_named(check):
    schema = {"type": "array", "items": {"type": "string", "format": "color"}, "uniqueItems": True}
    grammar = await check.require(read(response_format=named(schema)))
    path = "response_format.json_schema.schema"
    assert set(grammar.ignored) == {f"{path}.items.format", f"{path}:uniqueItems"}
    error = await refusal(check, response_format=named(schema, strict=True))
    assert "uniqueItems" in error.message


async def test_a_pattern_that_looks_around_is_left_out_unless_strict(check):
    """As generators write decimals."""
    decimal = {"anyOf": [{"type": "number"}, {
        "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}  # fmt: skip
    schema = {"type": "object", "properties": {"price": decimal}, "required": ["price"]}
    grammar = await check.require(read(response_format=named(schema)))
    path = "response_format.json_schema.schema.properties.price.anyOf[1]"
    assert grammar.ignored == (f"{path}.pattern",)
    error = await refusal(check, response_format=named(schema, strict=True))
    assert error.param == path
    assert "look-around" in error.message


async def test_keywords_that_say_nothing_are_no_obstacle(check):
    schema = {"type": "array", "uniqueItems": False, "minItems": 0, "title": "x", "default": []}
    assert await check.require(read(guided_json=schema))


async def test_a_property_may_be_called_like_a_keyword(check):
    schema = {"type": "object", "properties": {
        "format": {"type": "string"}, "uniqueItems": {"const": False}, "not": {"type": "null"},
        "x-guidance": {"type": "string"}}}  # fmt: skip
    structure = read(guided_json=schema)
    assert structure.schema.schema == schema
    assert (await check.require(structure)).ignored == ()


def test_sizes_are_bounded():
    deep: dict[str, object] = {"type": "null"}
    for _ in range(MOST_DEPTH + 1):
        deep = {"type": "array", "items": deep}
    large = {"enum": ["x" * MOST_BYTES]}
    for schema, limit in ((deep, MOST_DEPTH), (large, MOST_BYTES)):
        with pytest.raises(InvalidRequest, match=str(limit)):
            read(guided_json=schema)
    with pytest.raises(InvalidRequest, match="16384"):
        read(guided_regex="a" * 20_000)


async def test_a_schema_is_compiled_once_for_all_who_ask(check, monkeypatch):
    compiled = []
    compile = check._compiler.compile
    monkeypatch.setattr(
        check._compiler, "compile", lambda s: compiled.append(s.source) or compile(s)
    )
    await asyncio.gather(*(check.require(read(guided_json=PERSON)) for _ in range(5)))
    await check.require(read(response_format=named(PERSON, strict=True)))
    assert len(compiled) == 1


async def test_a_slow_check_is_given_up_and_a_flood_refused(check, monkeypatch):
    begun, slow = Event(), Event()

    def compile(structure):
        begun.set()
        return Grammar(structure.source) if slow.wait(60) else None

    monkeypatch.setattr(check._compiler, "compile", compile)
    one, another, third = (Structure("guided_regex", Notation.REGEX, each) for each in "abc")
    first = asyncio.create_task(check.require(one))
    assert await asyncio.to_thread(begun.wait, 60)
    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(module, "WAITING_EACH", 2)
    with pytest.raises(InvalidRequest, match="simplify") as caught:
        await check.require(one)
    assert caught.value.param == "guided_regex"
    with pytest.raises(Unavailable):  # it never got a thread
        await check.require(another)
    with pytest.raises(Unavailable):
        await check.require(third)
    slow.set()
    assert (await first).text == "a"


async def test_who_floods_with_slow_grammars_waits_for_itself_alone(check, monkeypatch):
    slow, order = Event(), []

    def compile(structure):
        order.append(structure.source)
        assert "!" in structure.source or slow.wait(60)
        return Grammar(structure.source)

    monkeypatch.setattr(check._compiler, "compile", compile)
    flood = [
        asyncio.create_task(check.require(Structure("r", Notation.REGEX, f"{n}"), "flood"))
        for n in range(module.WAITING_EACH)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await check.require(Structure("r", Notation.REGEX, "one more"), "flood")
    for tenant in ("acme!", "globex!", "acme!!"):
        found = await check.require(Structure("r", Notation.REGEX, tenant), tenant)
        assert found.text == tenant
    assert set(order) - {"0"} == {"acme!", "globex!", "acme!!"}
    slow.set()
    assert [(await each).text for each in flood] == [f"{n}" for n in range(len(flood))]


def chain(length):
    """Definitions that refer to each other, so that compiling goes as deep as they are many."""
    link = {"type": "object", "required": [""]}
    links = {str(i): {**link, "properties": {"": {"$ref": f"#/$defs/{i + 1}"}}}
             for i in range(length)}  # fmt: skip
    return {"$ref": "#/$defs/0", "$defs": {**links, str(length): {"type": "null"}}}


@pytest.mark.parametrize(
    "body",
    [
        {"guided_json": chain(1200)},  # overflows the stack of a usual thread
        {"guided_regex": "(" * 8000 + "a" + ")" * 8000},
        {"guided_regex": "(((a{0,999}){0,999}){0,999}){0,999}"},
        {"guided_grammar": "start: " + "(" * 15_000 + '"a"' + ")" * 15_000},
        {"guided_grammar": "root ::= " + "(" * 4000 + '"a"' + ")" * 4000},
        {"guided_json": {"type": "string", "minLength": 10**6}},
        {"guided_json": {"anyOf": [{"properties": {"k": {"const": i}}} for i in range(300)]}},
    ],
    ids=range(7),
)
async def test_what_is_made_to_hurt_is_answered_one_way_or_the_other(check, body):
    structure = read(**body)
    (found,) = await asyncio.gather(check.require(structure), return_exceptions=True)
    assert isinstance(found, Grammar | InvalidRequest)
    assert isinstance(found, Grammar) or len(found.message) < 700


async def test_a_schema_too_wide_to_be_followed_is_refused_before_it_fails(check):
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2500)}}
    assert "items" in (await refusal(check, guided_json=wide)).message
    narrow = {**wide, "properties": {f"p{i}": {"type": "string"} for i in range(300)}}
    assert (await check.require(read(guided_json=narrow))).text


async def test_a_schema_that_nothing_matches_is_refused(check):
    assert "nothing matches it" in (await refusal(check, guided_json={"$ref": "#"})).message


class Words:
    """Bytes, and longer tokens of the same beginning."""

    eos_token_id, bos_token_id = 256, None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", b"aa", b"aaaa")

    def __call__(self, text):
        return list(text)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": named({"const": {"aaaa": "aaaa" * 2000}})},
        {"guided_choice": ["aaaa" * 40]},
        {"guided_regex": "(a{1000}){1000}"},
        {"guided_grammar": 'root ::= "a"{900}'},
        {"guided_grammar": "start: X{1000}\nX: /a{10000}/"},
        {"guided_grammar": '%llguidance {"no_forcing": false}\nstart: "aaaa"'},
    ],
    ids=lambda body: next(iter(body)),
)
async def test_what_can_go_on_in_one_way_alone_is_not_worked_out_for_every_token(check, body):
    """Else it would be held to the one longest token."""
    grammar = await check.require(read(**body))
    tokenizer = LLTokenizer(TokenizerWrapper(Words()))
    matcher = LLMatcher(tokenizer, grammar.text, log_level=0)
    if "response_format" in body:
        assert matcher.consume_tokens(list(b'{"'))
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    assert [token for token in range(259) if allowed >> token & 1] == [ord("a"), 257, 258]


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        ('root ::= [\\u00e9x]{2}', "éx"),
        ('root ::= "\\u00e9\\U0001F600"', "é😀"),
        ('root ::= [\\u0041-\\u005d]', "]"),
        ('root ::= "\\\\u00e9"', "\\u00e9"),
        ('root ::= "\\u0022\\n"', '"\n'),
    ],
)  # fmt: skip
async def test_a_character_may_be_written_by_its_number(check, gbnf, text):
    grammar = await check.require(read(guided_grammar=gbnf))
    matcher = LLMatcher(LLTokenizer("byte"), grammar.text, log_level=0)
    assert matcher.try_consume_tokens(list(text.encode())) == len(text.encode())
    assert matcher.is_accepting()


async def test_a_refusal_does_not_quote_what_the_client_did_not_write(check):
    one_of = named({"oneOf": [{"type": "integer"}, {"type": "number"}]}, strict=True)
    for body in (
        {"response_format": named({"type": "int"}, strict=True)},
        {"response_format": one_of},
        {"guided_regex": "a^b"},
    ):
        said = (await refusal(check, **body)).message
        assert not re.search("x-guidance|llguidance|start:|coerce_one_of", said)


def test_completions_know_it_too():
    body = {"model": "m", "prompt": "x", "guided_choice": ["a", "b"]}
    assert read_completion(body).options.structure.path == "guided_choice"
    chat = {"model": "m", "messages": HELLO, "guided_choice": ["a", "b"]}
    assert read_chat(chat).options.structure.source == 'start: "a" | "b"'


async def test_an_engine_gets_the_grammar_and_a_client_the_faults(tmp_path):
    async with serving(tmp_path) as server:
        asked = {"model": BASE, "messages": HELLO}
        server.say("yes")
        got = await ask(server.port, post({**asked, "response_format": named(PERSON)}))
        assert got.status == 200
        assert '"name": {"type": "string"}' in server.last.grammar.replace('":', '": ')
        got = await ask(server.port, post({**asked, "guided_regex": "("}))
        assert (got.status, got.json["error"]["param"]) == (400, "guided_regex")
        loose = named({"type": "array", "uniqueItems": True})
        got = await ask(server.port, post({**asked, "response_format": loose}))
        assert got.headers["x-ignored-params"] == "response_format.json_schema.schema:uniqueItems"
        await ask(server.port, post(asked))
        assert server.last.grammar is None
        server.engine.knobs.refuse = RefusalCode.INVALID
        got = await ask(server.port, post({**asked, "guided_choice": ["a"]}))
        assert (got.status, got.json["error"]["code"]) == (400, "invalid_value")
