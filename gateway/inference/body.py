"""Bytes to a JSON object, with every trap of JSON turned into one documented 400.

orjson reads the common case. It refuses NaN, bad UTF-8, a byte order mark, lone surrogates and
nesting beyond 1,024; it turns integers beyond 64 bits into floats, so bodies that hold a long run
of digits are read once more by the standard parser. What is refused there is looked for in the
value, so that the answer names its field. Of duplicate keys the last one wins.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from gateway.errors import InvalidJson, InvalidRequest, InvalidType

Object = dict[str, Any]
INT64 = range(-(1 << 63), 1 << 63)
_MANY_DIGITS = re.compile(rb"\d{19}")
SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(raw: bytes) -> Object:
    """Raises InvalidJson, InvalidType or InvalidRequest."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        _explain(raw, error)
    if _MANY_DIGITS.search(raw):
        _require_numbers(_parse_slowly(raw))
    if not isinstance(value, dict):
        raise InvalidType("The body must be a JSON object.")
    return value


def _explain(raw: bytes, error: orjson.JSONDecodeError) -> NoReturn:
    if not raw.strip():
        raise InvalidJson("The body is empty; send a JSON object.") from error
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InvalidJson("The body begins with a byte order mark; send plain UTF-8.") from error
    value = _parse_slowly(raw)
    _require_numbers(value)
    for path, text in strings(value):
        if SURROGATE.search(text):
            raise InvalidRequest(
                "A lone surrogate is not a character; escape characters beyond the basic plane"
                " as a pair.",
                param=path or None,
            ) from error
    raise InvalidJson(f"The body is not valid JSON: {error.msg} at position {error.pos}.")


def _parse_slowly(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), parse_int=_integer, parse_constant=_Foreign)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"The body is not UTF-8 at byte {error.start}.") from error
    except RecursionError as error:
        raise InvalidJson("The body is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise InvalidJson(
            f"The body is not valid JSON: {error.msg} at position {error.pos}."
        ) from error


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Stands in a value where a number is none that JSON or 64 bits have."""

    text: str


def _integer(digits: str) -> "int | _Foreign":
    if len(digits) > 20 or (number := int(digits)) not in INT64:
        return _Foreign(digits)
    return number


def _require_numbers(value: Any) -> None:
    """Raises InvalidRequest or InvalidJson, which name the place."""
    for path, leaf in leaves(value):
        where = path or "The body"
        if isinstance(leaf, _Foreign) and leaf.text.lstrip("-").isdigit():
            raise InvalidRequest(
                f"{where} is {leaf.text[:40]}; an integer must fit in 64 bits.", param=path or None
            )
        if isinstance(leaf, _Foreign):
            raise InvalidJson(
                f"{where} is {leaf.text}, which is not a JSON number.", param=path or None
            )
        if isinstance(leaf, float) and math.isinf(leaf):
            raise InvalidRequest(
                f"{where} is a number beyond what 64 bits hold.", param=path or None
            )


def strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every string in a value with its path; keys count as their object's. Any depth."""
    return ((path, leaf) for path, leaf in leaves(value) if isinstance(leaf, str))


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """All that is no array or object, with its path; keys count as their object's. Any depth."""
    rest = [("", value)]
    while rest:
        path, item = rest.pop()
        if isinstance(item, list):
            rest.extend((f"{path}[{index}]", part) for index, part in enumerate(item))
        elif isinstance(item, dict):
            for key, part in item.items():
                yield path, key
                name = key[:100].encode(errors="replace").decode()
                rest.append((f"{path}.{name}" if path else name, part))
        else:
            yield path, item
