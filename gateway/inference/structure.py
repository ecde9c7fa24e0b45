"""What an answer must match, as the client says it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its older ``guided_…`` fields say
the same things; one of them may be given. A schema marked strict, and every one of vLLM's, is
enforced whole or refused; of others, what cannot be enforced is left out and named in
``x-ignored-params``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import orjson

from gateway.errors import InvalidRequest, MissingParameter, UnsupportedParameter
from gateway.inference.fields import (
    Fields,
    checked_text,
    object_at,
    out_of_range,
    wrong_count,
    wrong_type,
)
from gateway.inference.schema import ANY_OBJECT, JsonSchema
from gateway.inference.structural_tag import TagGrammar

MOST_PATTERN_CHARS = 1 << 14
MOST_GRAMMAR_CHARS = 1 << 15
MOST_GBNF_CHARS = 1 << 13  # what reads it is slow
MOST_WORDS = 4096
MOST_TAGGED_CHARS = 1 << 17
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_FIELDS = frozenset({
    "response_format", "structured_outputs", "guided_decoding_backend",
    "guided_whitespace_pattern", *(f"guided_{kind}" for kind in _KINDS),
})  # fmt: skip


class Notation(Enum):
    SCHEMA = auto()
    REGEX = auto()
    LARK = auto()  # as llguidance knows it
    GRAMMAR = auto()  # Lark's, or GBNF


@dataclass(frozen=True, slots=True)
class Structure:
    """What every choice of an answer must match. Not checked yet."""

    path: str  # the field that says so
    notation: Notation
    source: str
    schema: JsonSchema | None = None  # where it is one, whole: to say which part is at fault
    lenient: bool = False  # what the schema asks beyond what can be enforced is left out
    ignored: tuple[str, ...] = ()  # paths
    parts: tuple["Structure", ...] = ()  # that it was made of: to say which of them is at fault


def read_structure(fields: Fields) -> Structure | None:
    """Raises InvalidRequest or one of its kinds."""
    if not fields.has_any(_FIELDS):
        return None
    found = [*_response_format(fields), *_structured_outputs(fields), *_guided(fields)]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0].path} and {found[1].path} exclude each other; give one of them.",
            param=found[1].path,
        )
    return found[0] if found else None


def of_schema(
    schema: JsonSchema, path: str, *, lenient: bool = False, white_space: str | None = None
) -> Structure:
    text = schema.text(lenient=lenient, white_space=white_space)
    return Structure(path, Notation.SCHEMA, text, schema, lenient, schema.ignored)


def _response_format(fields: Fields) -> list[Structure]:
    given = fields.object("response_format")
    if given is None:
        return []
    kind = given.text("type")
    match kind:
        case None:
            raise MissingParameter(f"{given.at('type')} is required.", param=given.at("type"))
        case "text":
            return []
        case "json_object":
            return [of_schema(ANY_OBJECT, given.path)]
        case "json_schema":
            return [_named_schema(given)]
        case "structural_tag":
            return [_tagged(given)]
        case "grammar" | "python":
            raise UnsupportedParameter(
                f"{given.at('type')} {kind!r} is not supported.", param=given.at("type")
            )
    raise InvalidRequest(
        f"{given.at('type')} must be one of text, json_object, json_schema, structural_tag.",
        param=given.at("type"),
    )


def _tagged(given: Fields) -> Structure:
    grammar = TagGrammar.read(given)
    if len(grammar.text) > MOST_TAGGED_CHARS:
        raise out_of_range("the grammar", f"at most {MOST_TAGGED_CHARS} characters", given.path)
    return Structure(
        given.path,
        Notation.LARK,
        grammar.text,
        ignored=tuple(grammar.ignored),
        parts=tuple(of_schema(schema, path) for schema, path in grammar.schemas),
    )


def _named_schema(given: Fields) -> Structure:
    inner = given.object("json_schema")
    if inner is None:
        raise MissingParameter(
            f"{given.at('json_schema')} is required.", param=given.at("json_schema")
        )
    name = inner.name("name")
    if name is None:
        raise MissingParameter(f"{inner.at('name')} is required.", param=inner.at("name"))
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{inner.at('name')} must be 1 to 64 letters, digits, underscores or dashes.",
            param=inner.at("name"),
        )
    inner.text("description")
    strict, value = inner.flag("strict"), inner.take("schema")
    path = inner.at("schema")
    schema = ANY_OBJECT if value is None else JsonSchema.read(value, path, lenient=not strict)
    return of_schema(schema, path, lenient=not strict)


def _structured_outputs(fields: Fields) -> list[Structure]:
    given = fields.object("structured_outputs")
    if given is None:
        return []
    found = _constraints(given, _KINDS, given.take("whitespace_pattern"), given.at)
    if given.flag("disable_any_whitespace") and found:
        found = [_without_space(one) for one in found]
    if (tagged := given.take("structural_tag")) is not None:
        path = given.at("structural_tag")
        found.append(_tagged(object_at(_parsed(tagged, path), path)))
    name = "disable_additional_properties"
    if given.take(name):
        raise UnsupportedParameter(f"{given.at(name)} is not supported.", param=given.at(name))
    if not found:
        raise InvalidRequest(
            f"{given.path} must have one of {', '.join(_KINDS)}, structural_tag.",
            param=given.path,
        )
    return found


def _guided(fields: Fields) -> list[Structure]:
    names = {f"guided_{kind}": kind for kind in _KINDS}
    fields.take("guided_decoding_backend")  # there is one
    space = fields.take("guided_whitespace_pattern")
    return _constraints(fields, tuple(names), space, fields.at)


def _constraints(
    given: Fields, names: tuple[str, ...], space: Any, at: Callable[[str], str]
) -> list[Structure]:
    space = None if space is None else checked_text(space, at("whitespace_pattern"))
    found = []
    for name in names:
        path, kind = at(name), name.removeprefix("guided_")
        value = (given.flag(name) or None) if kind == "json_object" else given.take(name)
        if value is None:
            continue
        match kind:
            case "json":
                schema = JsonSchema.read(_parsed(value, path), path)
                found.append(of_schema(schema, path, white_space=space))
            case "json_object":
                found.append(of_schema(ANY_OBJECT, path, white_space=space))
            case "regex":
                found.append(_regex(value, path))
            case "choice":
                found.append(_choice(value, path))
            case "grammar":
                found.append(_grammar(value, path))
    return found


def _parsed(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}.", param=path) from error


def _without_space(structure: Structure) -> Structure:
    if structure.schema is None:
        return structure
    return of_schema(structure.schema, structure.path, white_space="")


def _regex(value: Any, path: str) -> Structure:
    pattern = checked_text(value, path)
    if len(pattern) > MOST_PATTERN_CHARS:
        raise out_of_range(f"{len(pattern)} characters long", f"at most {MOST_PATTERN_CHARS}", path)
    return Structure(path, Notation.REGEX, pattern)


def _choice(value: Any, path: str) -> Structure:
    if not isinstance(value, list):
        raise wrong_type(value, "an array of strings", path)
    if not 1 <= len(value) <= MOST_WORDS:
        raise wrong_count(len(value), f"between 1 and {MOST_WORDS}", "strings", path)
    words = [checked_text(word, f"{path}[{i}]") for i, word in enumerate(value)]
    if not all(words):
        raise InvalidRequest(f"{path} must not hold empty strings.", param=path)
    if sum(map(len, words)) > MOST_GRAMMAR_CHARS:
        raise out_of_range("the text", f"at most {MOST_GRAMMAR_CHARS} characters", path)
    lark = "start: " + " | ".join(quoted(word) for word in words)
    return Structure(path, Notation.LARK, lark)


def _grammar(value: Any, path: str) -> Structure:
    """In Lark's notation or in GBNF's."""
    text = checked_text(value, path)
    most = MOST_GBNF_CHARS if "::=" in text else MOST_GRAMMAR_CHARS
    if len(text) > most:
        raise out_of_range(f"{len(text)} characters long", f"at most {most}", path)
    return Structure(path, Notation.GRAMMAR, text)


def quoted(text: str) -> str:
    """A string in a Lark grammar."""
    return orjson.dumps(text).decode()
