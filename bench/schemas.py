"""Some two hundred JSON schemas of the kinds people send, written here: families and pieces.

They are what held answers are tried with: how many a server accepts whole, whether every finished
answer is valid, and how long masks take.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

SCALARS: dict[str, Schema] = {
    "text": {"type": "string"},
    "short": {"type": "string", "maxLength": 12},
    "whole": {"type": "integer"},
    "count": {"type": "integer", "minimum": 0, "maximum": 500},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "colour": {"enum": ["red", "green", "blue"]},
    "day": {"type": "string", "format": "date"},
}
PATTERNS = {
    "digits": r"^\d{3}$", "phone": r"^\+?[0-9]{2,4}-[0-9]{4,8}$", "postcode": r"^[A-Z]{2}\d{1,2}$",
    "slug": r"^[a-z0-9]+(-[a-z0-9]+)*$", "hex": r"^#[0-9a-fA-F]{6}$", "semver": r"^\d+\.\d+\.\d+$",
    "inside": r"ab+c", "choice": r"^(yes|no|maybe)$", "class": r"^[^aeiou]{2,5}$",
    "dotted": r"^[a-z]+\.[a-z]+$", "money": r"^\$\d{1,3}(,\d{3})*(\.\d{2})?$",
    "clock": r"^([01]\d|2[0-3]):[0-5]\d$", "plate": r"^[A-Z]{1,3}-[A-Z]{1,2} \d{1,4}$",
    "escaped": r"^\(\d{3}\) \d{3}$", "lazy": r"^a{2,4}?b$", "word": r"^\w{1,8}$",
    "spaces": r"^\S+\s\S+$", "empty": r"^$", "begins": r"^pre_", "ends": r"_post$",
}  # fmt: skip
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
           "uri")  # fmt: skip
RANGES: list[Schema] = [
    {"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 0},
    {"type": "integer", "minimum": -17, "maximum": 42},
    {"type": "integer", "minimum": 7, "maximum": 7},
    {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12},
    {"type": "integer", "minimum": 1, "maximum": 1000000},
    {"type": "integer", "multipleOf": 5}, {"type": "integer", "minimum": 10, "multipleOf": 10},
    {"type": "integer", "minimum": -1000, "maximum": -998},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "minimum": -1.5, "maximum": 2.25}, {"type": "number", "maximum": 100},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 0.1, "maximum": 0.2},
    {"type": "number", "minimum": 1000, "maximum": 1000.5},
]  # fmt: skip


def closed(properties: dict[str, Schema], *, required: int | None = None, **more: Any) -> Schema:
    """An object of these properties alone, the first of them required; None: all."""
    names = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": names if required is None else names[:required],
        "additionalProperties": False,
        **more,
    }


def all_schemas() -> dict[str, Schema]:
    """By name."""
    written = json.loads((Path(__file__).parent / "schemas.json").read_text("utf-8"))
    found = {f"written {name}": schema for name, schema in written.items()}
    families = (_flat, _nested, _arrays, _enums, _references, _unions, _strings, _numbers,
                _openness, _mixed, _unenforced)  # fmt: skip
    for family in families:
        for number, schema in enumerate(family()):
            found[f"{family.__name__[1:]} {number}"] = schema
    return found


def _flat() -> Iterator[Schema]:
    names = list(SCALARS)
    for size in (1, 2, 3, 5, 8):
        for start in range(0, len(names), 3):
            chosen = {n: SCALARS[n] for n in (names * 2)[start : start + size]}
            yield closed(chosen, required=None if start else size // 2)


def _nested() -> Iterator[Schema]:
    for kind in ("short", "count", "flag"):
        inner: Schema = closed({"leaf": SCALARS[kind]})
        for depth in range(1, 6):
            inner = closed({f"level{depth}": inner, "note": SCALARS["short"]}, required=1)
            yield inner


def _arrays() -> Iterator[Schema]:
    for kind in ("short", "count", "flag", "colour"):
        for limits in ({"maxItems": 4}, {"minItems": 2, "maxItems": 3}, {"minItems": 1}):
            yield closed({"items": {"type": "array", "items": SCALARS[kind], **limits}})
    pair = closed({"key": SCALARS["short"], "value": SCALARS["count"]})
    yield {"type": "array", "items": pair, "minItems": 1, "maxItems": 3}
    yield {"type": "array", "items": {"type": "array", "items": SCALARS["count"], "maxItems": 2},
           "maxItems": 3}  # fmt: skip
    yield {"type": "array", "prefixItems": [SCALARS["short"], SCALARS["count"]], "items": False,
           "minItems": 2}  # fmt: skip
    yield {"type": "array", "prefixItems": [SCALARS["flag"]], "items": SCALARS["colour"],
           "maxItems": 4}  # fmt: skip
    yield {"type": "array", "maxItems": 0}


def _enums() -> Iterator[Schema]:
    yield {"enum": ["one"]}
    yield {"enum": ["a", 1, 2.5, True, None]}
    yield {"enum": ["", " ", 'with "quotes"', "line\nbreak", "ünïcödé", "日本"]}
    yield {"enum": [{"a": 1}, [1, 2], "text"]}
    yield {"type": "string", "enum": [f"option {i}" for i in range(200)]}
    yield {"type": "integer", "enum": [1, 2, 3, 100]}
    yield {"const": "fixed"}
    yield {"const": {"nested": [1, {"deep": None}]}}
    yield closed({"kind": {"const": "event"}, "level": {"enum": ["low", "high"]}})
    yield closed({"a": {"const": 1}, "b": {"const": False}, "c": {"const": None}})


def _references() -> Iterator[Schema]:
    point = closed({"x": SCALARS["count"], "y": SCALARS["count"]})
    for key in ("$defs", "definitions"):
        ref = {"$ref": f"#/{key}/point"}
        yield {**closed({"from": ref, "to": ref}), key: {"point": point}}
        yield {"type": "array", "items": ref, "maxItems": 2, key: {"point": point}}
        yield {"$ref": f"#/{key}/point", key: {"point": point}}
    name = {"$ref": "#/$defs/name"}
    yield {
        **closed({"who": {"$ref": "#/$defs/person"}}),
        "$defs": {"name": SCALARS["short"], "person": closed({"first": name, "last": name})},
    }
    yield {**closed({"a": {"$ref": "#/$defs/with~1slash"}}),
           "$defs": {"with/slash": SCALARS["flag"]}}  # fmt: skip
    tree = closed({"value": SCALARS["count"], "children": {
        "type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, required=1)  # fmt: skip
    yield tree
    node = closed({"value": SCALARS["count"], "next": {
        "anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})  # fmt: skip
    yield {"$ref": "#/$defs/node", "$defs": {"node": node}}
    expression = {"anyOf": [SCALARS["count"], closed({
        "op": {"enum": ["+", "*"]}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"},
    })]}  # fmt: skip
    yield {"$ref": "#/$defs/e", "$defs": {"e": expression}}
    yield {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": closed({"b": {"$ref": "#/$defs/b"}}, required=0),
            "b": closed({"a": {"$ref": "#/$defs/a"}, "end": SCALARS["flag"]}, required=0),
        },
    }
    anything = {
        "anyOf": [
            SCALARS["short"],
            SCALARS["count"],
            SCALARS["nothing"],
            {"type": "array", "items": {"$ref": "#/$defs/any"}, "maxItems": 2},
        ]
    }
    yield {**closed({"any": {"$ref": "#/$defs/any"}}), "$defs": {"any": anything}}


def _unions() -> Iterator[Schema]:
    cat = closed({"type": {"const": "cat"}, "lives": SCALARS["count"]})
    dog = closed({"type": {"const": "dog"}, "tricks": {
        "type": "array", "items": SCALARS["short"], "maxItems": 2}})  # fmt: skip
    for key in ("anyOf", "oneOf"):
        yield {key: [SCALARS["short"], SCALARS["count"]]}
        yield {key: [cat, dog]}
        yield closed({"pet": {key: [cat, dog]}, "since": SCALARS["day"]})
        yield closed({"maybe": {key: [SCALARS["short"], SCALARS["nothing"]]}})
        yield {key: [{"type": "array", "items": SCALARS["flag"], "maxItems": 2}, cat]}
    for kind in ("string", "integer", "boolean"):
        yield closed({"maybe": {"type": [kind, "null"]}})
    yield {"type": ["integer", "boolean", "null"]}
    yield {
        "allOf": [
            {"type": "object", "properties": {"a": SCALARS["count"]}, "required": ["a"]},
            {"type": "object", "properties": {"b": SCALARS["flag"]}, "required": ["b"]},
        ]
    }
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}
    yield {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]}
    yield closed({"v": {"allOf": [{"$ref": "#/$defs/v"}], "description": "As written."}},
                 **{"$defs": {"v": SCALARS["count"]}})  # fmt: skip


def _strings() -> Iterator[Schema]:
    for pattern in PATTERNS.values():
        yield closed({"value": {"type": "string", "pattern": pattern}})
    for form in FORMATS:
        yield closed({"value": {"type": "string", "format": form}})
    for low, high in ((0, 0), (0, 5), (1, 1), (3, 9), (20, 24)):
        yield {"type": "string", "minLength": low, "maxLength": high}
    yield {"type": "string", "minLength": 4}


def _numbers() -> Iterator[Schema]:
    for schema in RANGES:
        yield closed({"value": schema})
    yield closed({"low": RANGES[2], "high": RANGES[11], "list": {
        "type": "array", "items": RANGES[9], "maxItems": 2}})  # fmt: skip


def _openness() -> Iterator[Schema]:
    yield {"type": "object"}
    yield {"type": "object", "maxProperties": 2}
    yield {"type": "object", "minProperties": 1, "maxProperties": 2,
           "additionalProperties": SCALARS["count"]}  # fmt: skip
    for more in (True, SCALARS["count"], {"type": "array", "items": SCALARS["flag"]}):
        yield {**closed({"known": SCALARS["short"]}), "additionalProperties": more}
    yield {"type": "object", "patternProperties": {"^x_": SCALARS["count"]},
           "additionalProperties": False}  # fmt: skip
    yield {"type": "object", "properties": {"id": SCALARS["count"]}, "required": ["id"],
           "patternProperties": {"^is_[a-z]{1,6}$": SCALARS["flag"]},
           "additionalProperties": False}  # fmt: skip
    yield {"type": "object", "additionalProperties": {"enum": ["on", "off"]}, "maxProperties": 3}
    yield {"type": "object", "properties": {"a": SCALARS["flag"]}}
    yield {}
    yield {"type": "array"}


def _mixed() -> Iterator[Schema]:
    """A little of everything in one object."""
    patterns, forms, scalars = list(PATTERNS.values()), list(FORMATS), list(SCALARS.values())
    for i in range(24):
        row = closed(
            {
                "code": {"type": "string", "pattern": patterns[i % 9]},
                "at": {"type": "string", "format": forms[i % len(forms)]},
                "size": RANGES[i % len(RANGES)],
                "extra": {"anyOf": [scalars[i % len(scalars)], {"type": "null"}]},
            },
            required=1 + i % 4,
        )
        yield {
            **closed({"rows": {"type": "array", "items": {"$ref": "#/$defs/row"},
                               "minItems": i % 2, "maxItems": 2}, "done": SCALARS["flag"]}),
            "$defs": {"row": row},
        }  # fmt: skip


def _unenforced() -> Iterator[Schema]:
    """What no compiler here can hold an answer to: refused when strict."""
    yield {"type": "array", "items": SCALARS["count"], "uniqueItems": True}
    yield {"type": "array", "items": SCALARS["count"], "contains": {"const": 7}}
    yield {"type": "string", "not": {"enum": ["no"]}}
    yield {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}
    yield closed({"a": SCALARS["flag"], "b": SCALARS["flag"]}, required=0,
                 dependentRequired={"a": ["b"]})  # fmt: skip
    yield {"if": {"type": "string"}, "then": {"maxLength": 3}}
