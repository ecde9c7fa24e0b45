"""A JSON schema as a client wrote it, made ready to be compiled.

Formats that nobody defined are annotations by the standard, so they are left out, and named to the
client; so are keywords that say nothing. How text between tokens may look is ours to say: white
space is bounded, for a model must not be able to go on with it for ever. Whether the rest can be
enforced is the compiler's to find out; ``parts`` helps to say where it cannot.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from gateway.errors import InvalidRequest, InvalidType
from gateway.inference.finite import Ends

Schema = Mapping[str, Any]

MOST_BYTES = 1 << 17
MOST_DEPTH = 64
WHITE_SPACE = r"\n?[ \t]{0,40}"  # between tokens, where any is allowed
OPTIONS = "x-guidance"  # the compiler's own keyword
FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
})  # fmt: skip
DEFINITIONS = ("$defs", "definitions", "$schema", "$id")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_BEYOND_AUTOMATA = re.compile(r"\(\?<?[=!]|\\[1-9]")  # looking around, and back
_TIMES = ("time", "date-time")
_SECONDS = r":[0-5]\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)$"  # no 60th: hardly a parser takes one
_SAYS_NOTHING = {"uniqueItems": False, "minItems": 0, "minLength": 0, "minProperties": 0}


@dataclass(frozen=True, slots=True)
class JsonSchema:
    schema: Schema
    ignored: tuple[str, ...]  # paths of what was left out

    @classmethod
    def read(cls, value: Any, path: str, *, lenient: bool = False) -> "JsonSchema":
        """``lenient``: a pattern that no automaton matches is left out too.

        Raises InvalidRequest or InvalidType.
        """
        if not isinstance(value, dict):
            raise InvalidType(f"{path} must be a JSON schema, an object.", param=path)
        ignored: list[str] = []
        schema = _Cleaner(lenient, ignored).cleaned(value, path)
        size = len(orjson.dumps(schema))
        if size > MOST_BYTES:
            raise InvalidRequest(
                f"{path} has {size} bytes; a schema may have {MOST_BYTES}.", param=path
            )
        return cls(_finite(schema, path), tuple(ignored))

    def text(self, *, lenient: bool, white_space: str | None = None) -> str:
        """For the compiler. ``lenient``: what cannot be enforced is left out, with a warning.

        ``white_space``: a pattern for it; None takes ours.
        """
        space = WHITE_SPACE if white_space is None else white_space
        options = {"whitespace_pattern": space, "lenient": lenient}
        return orjson.dumps({**self.schema, OPTIONS: options}).decode()


ANY_OBJECT = JsonSchema({"type": "object"}, ())


def parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Schemas directly inside a schema, with their paths from it."""
    for key in _NAMED:
        if isinstance(named := schema.get(key), Mapping):
            yield from ((f".{key}.{name}", part) for name, part in named.items() if _is(part))
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            yield from ((f".{key}[{i}]", part) for i, part in enumerate(listed) if _is(part))
    for key in _SINGLE:
        if isinstance(part := schema.get(key), Mapping):
            yield f".{key}", part


def _finite(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The same, without what a model could only begin: parts that no finite value satisfies.

    Raises InvalidRequest where that is all of it.
    """
    if not any("$ref" in part for part in _all(schema)):
        return schema
    ends = Ends(schema, parts)
    if not ends.of(schema):
        at = f"{path}{ends.culprit()}"[:200]
        raise InvalidRequest(
            f"{at} cannot be followed: nothing matches it, as it holds itself without end.",
            param=at,
        )
    for part in list(_all(schema)):
        _bar(part, ends)
    return schema


def _all(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stack: list[Any] = [schema]
    while stack:
        part = stack.pop()
        yield part
        stack.extend(inner for _, inner in parts(part))


def _bar(part: dict[str, Any], ends: Ends) -> None:
    """Say of parts that do not end that nothing matches them."""
    for key in (*_NAMED, *_LISTED, *_SINGLE):
        match part.get(key):
            case dict() as named if key in _NAMED:
                part[key] = {name: ends.of(inner) and inner for name, inner in named.items()}
            case list() as listed:
                part[key] = [ends.of(inner) and inner for inner in listed]
            case dict() as inner if key in _SINGLE and not ends.of(inner):
                part[key] = False


def _is(value: object) -> TypeGuard[Schema]:
    return isinstance(value, Mapping)


@dataclass(frozen=True, slots=True)
class _Cleaner:
    lenient: bool
    ignored: list[str]  # grows

    def cleaned(self, schema: Schema, path: str, depth: int = 0) -> dict[str, Any]:
        if depth > MOST_DEPTH:
            raise InvalidRequest(
                f"{path[:200]} is nested more than {MOST_DEPTH} schemas deep.", param=path[:200]
            )
        clean = {key: value for key, value in schema.items() if not _is_empty(key, value)}
        for key in self._left_out(clean):
            del clean[key]
            self.ignored.append(f"{path}.{key}")
        if clean.get("format") in _TIMES:
            clean.setdefault("pattern", _SECONDS)
        for key in _NAMED:
            if isinstance(named := clean.get(key), dict):
                clean[key] = {
                    name: self._within(part, f"{path}.{key}.{name}", depth)
                    for name, part in named.items()
                }
        for key in _LISTED:
            if isinstance(listed := clean.get(key), list):
                clean[key] = [
                    self._within(part, f"{path}.{key}[{i}]", depth) for i, part in enumerate(listed)
                ]
        for key in _SINGLE:
            if isinstance(clean.get(key), dict):
                clean[key] = self._within(clean[key], f"{path}.{key}", depth)
        return clean

    def _within(self, part: Any, path: str, depth: int) -> Any:
        return self.cleaned(part, path, depth + 1) if isinstance(part, dict) else part

    def _left_out(self, schema: Schema) -> Iterator[str]:
        shape, pattern = schema.get("format"), schema.get("pattern")
        if isinstance(shape, str) and shape not in FORMATS:
            yield "format"
        if self.lenient and isinstance(pattern, str) and _BEYOND_AUTOMATA.search(pattern):
            yield "pattern"


def _is_empty(key: str, value: Any) -> bool:
    """Whether a keyword says nothing."""
    if key == OPTIONS:
        return True
    return key in _SAYS_NOTHING and value is not True and value == _SAYS_NOTHING[key]
