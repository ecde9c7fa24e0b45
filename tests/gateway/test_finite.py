"""Schemas whose parts hold themselves: what no finite value satisfies is refused or left out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.inference.finite import Ends
from gateway.inference.grammars import Compiler, Flaw
from gateway.inference.schema import JsonSchema, parts
from gateway.inference.structure import of_schema


def node(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


SELF, WHOLE = {"$ref": "#"}, {"type": "integer"}
ENDLESS = {
    "a property that is required": (node(a=SELF), ".properties.a"),
    "a definition": ({"$ref": "#/$defs/n", "$defs": {"n": node(v=WHOLE, n={"$ref": "#/$defs/n"})}},
                     ".$defs.n.properties.n"),
    "a list that must not be empty": ({"type": "array", "items": SELF, "minItems": 1}, ".items"),
    "one through another": (
        {"$ref": "#/$defs/a", "$defs": {"a": node(b={"$ref": "#/$defs/b"}),
                                        "b": node(a={"$ref": "#/$defs/a"})}},
        ".$defs.b.properties.a"),
    "only itself": (SELF, ""),
    "every alternative": ({"anyOf": [node(a=SELF), {"type": "array", "prefixItems": [SELF],
                                                    "minItems": 1}]}, ".anyOf[0].properties.a"),
    "one of all": ({"allOf": [WHOLE, node(a=SELF)]}, ".allOf[1].properties.a"),
    "any name": ({"type": "object", "additionalProperties": SELF, "minProperties": 1},
                 ".additionalProperties"),
    "alternatives of one type": (
        {"type": "object", "anyOf": [{"properties": {"a": SELF}, "required": ["a"]}]},
        ".anyOf[0].properties.a"),
    "a name with a slash": (
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": node(x={"$ref": "#/$defs/a~1b"})}},
        ".$defs.a/b.properties.x"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "at"), ENDLESS.values(), ids=ENDLESS)
def test_what_nothing_finite_matches_is_refused_by_its_path(schema, at):
    with pytest.raises(InvalidRequest, match="without end") as caught:
        JsonSchema.read(schema, "schema")
    assert caught.value.param == f"schema{at}"


FINITE = [
    {"type": "object", "properties": {"a": SELF}},
    {"type": "array", "items": SELF},
    {"anyOf": [{"type": "null"}, node(a=SELF)]},
    {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
    {"properties": {"a": SELF}, "required": ["a"]},  # a number is one, too
    {"type": "object", "additionalProperties": SELF, "minProperties": 1,
     "patternProperties": {"^x": WHOLE}},
    {"$ref": "#/elsewhere/a", "elsewhere": {"a": WHOLE}},
    {"$ref": "other.json"},
    {"type": "array", "items": [WHOLE, SELF], "minItems": 1},
    {**node(a=SELF), "enum": [1]},
    {"required": 7, "type": "object", "properties": {"a": SELF}},
]  # fmt: skip


@pytest.mark.parametrize("schema", FINITE, ids=range(len(FINITE)))
def test_what_may_end_is_as_it_was(schema):
    assert JsonSchema.read(schema, "schema").schema == schema


def test_parts_that_never_end_are_barred_and_the_rest_is_followed():
    bad = {"type": "array", "items": {"$ref": "#/$defs/bad"}, "minItems": 2}
    schema = {
        "anyOf": [node(x={"$ref": "#/$defs/bad"}), WHOLE],
        "$defs": {"bad": bad},
    }
    read = JsonSchema.read(schema, "schema")
    assert read.schema["anyOf"] == [False, WHOLE]
    grammar = Compiler().compile(of_schema(read, "schema"))
    assert not isinstance(grammar, Flaw)
    optional = {"type": "object", "properties": {"x": {"$ref": "#/$defs/bad"}, "y": WHOLE}}
    read = JsonSchema.read({**optional, "$defs": {"bad": bad}}, "schema")
    assert read.schema["properties"] == {"x": False, "y": WHOLE}
    assert not isinstance(Compiler().compile(of_schema(read, "schema")), Flaw)


def test_a_long_chain_of_references_is_gone_along_once():
    chain = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(2000)}
    schema = {"$ref": "#/$defs/n0", "$defs": {**chain, "n2000": WHOLE}}
    assert JsonSchema.read(schema, "schema").schema == schema
    with pytest.raises(InvalidRequest, match="without end"):
        JsonSchema.read({**schema, "$defs": {**chain, "n2000": node(a=SELF)}}, "schema")


NAMES = ("a", "b", "c")
REFS = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])
INNER = st.recursive(
    REFS | st.just(WHOLE),
    lambda inner: (
        st.builds(lambda x: node(p=x), inner)
        | st.builds(
            lambda x, n: {"type": "array", "items": x, "minItems": n}, inner, st.integers(0, 1)
        )
        | st.builds(lambda xs: {"anyOf": xs}, st.lists(inner, min_size=1, max_size=2))
    ),
    max_leaves=4,
)


def satisfied(schema, defs, levels, known):
    """Whether a value of so few levels satisfies it: by trying."""
    if levels < 0:
        return False
    if (id(schema), levels) in known:
        return known[id(schema), levels]

    def inside(inner, less=1):
        return satisfied(inner, defs, levels - less, known)

    if "$ref" in schema:
        found = inside(defs[schema["$ref"][-1]])
    elif "anyOf" in schema:
        found = any(inside(inner, 0) for inner in schema["anyOf"])
    elif schema["type"] == "object":
        found = all(inside(inner) for inner in schema["properties"].values())
    elif schema["type"] == "array":
        found = schema["minItems"] == 0 or inside(schema["items"])
    else:
        found = True
    known[id(schema), levels] = found
    return found


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[INNER] * len(NAMES)))
def test_what_ends_is_what_some_small_value_satisfies(defined):
    defs = json.loads(json.dumps(dict(zip(NAMES, defined, strict=True))))  # no part is shared
    root = {"$ref": "#/$defs/a", "$defs": defs}
    ends, known = Ends(root, parts), {}
    for schema in (root, *defs.values()):
        assert ends.of(schema) == satisfied(schema, defs, 40, known)
