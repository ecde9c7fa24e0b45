"""Reads the fields of a JSON object one by one; every refusal names the field and the numbers.

``null`` means absent, as OpenAI's clients send it. What nobody read is left in ``unread``.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from gateway.errors import InvalidRequest, InvalidType, MissingParameter
from gateway.inference.body import INT64, Object

MOST_TOKEN_ID = (1 << 31) - 1
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_KINDS = {
    bool: "a boolean", int: "an integer", float: "a number", str: "a string",
    list: "an array", dict: "an object", type(None): "null",
}  # fmt: skip


class Fields:
    """One object of the request and the path at which the client wrote it."""

    __slots__ = ("_body", "path", "unread")

    def __init__(self, body: Object, path: str = "") -> None:
        self._body = body
        self.path = path
        self.unread = {name for name, value in body.items() if value is not None}

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str) -> Any:
        value = self._body.get(name)
        if value is not None:
            self.unread.discard(name)
        return value

    def has_any(self, names: AbstractSet[str]) -> bool:
        """Whether any of these is there and was not read: most requests have few fields."""
        return not self.unread.isdisjoint(names)

    def flag(self, name: str, default: bool = False) -> bool:
        if (value := self._body.get(name)) is None:
            return default
        self.unread.discard(name)
        if not isinstance(value, bool):
            raise wrong_type(value, "a boolean", self.at(name))
        return value

    def number(self, name: str, low: float, high: float, *, default: float) -> float:
        if (value := self._body.get(name)) is None:
            return default
        self.unread.discard(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(value, "a number", self.at(name))
        if not low <= value <= high:
            raise out_of_range(value, f"between {low:g} and {high:g}", self.at(name))
        return float(value)

    def integer(self, name: str, low: int = INT64.start, high: int = INT64.stop - 1) -> int | None:
        if (value := self._body.get(name)) is None:
            return None
        self.unread.discard(name)
        return checked_integer(value, low, high, self.at(name))

    def text(self, name: str) -> str | None:
        if (value := self._body.get(name)) is None:
            return None
        self.unread.discard(name)
        return checked_text(value, self.at(name))

    def name(self, name: str) -> str | None:
        """A short printable string: a model's name, an id."""
        value = self.text(name)
        if value is not None and (CONTROL.search(value) or len(value) > 512):
            raise InvalidRequest(
                f"{self.at(name)} must be at most 512 characters without control characters.",
                param=self.at(name),
            )
        return value

    def items(self, name: str, most: int) -> list[Any] | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(value, "an array", self.at(name))
        if len(value) > most:
            raise wrong_count(len(value), f"at most {most}", "items", self.at(name))
        return value

    def token_ids(self, name: str, most: int) -> tuple[int, ...]:
        values = self.items(name, most) or []
        return tuple(
            checked_integer(value, 0, MOST_TOKEN_ID, f"{self.at(name)}[{i}]")
            for i, value in enumerate(values)
        )

    def object(self, name: str) -> "Fields | None":
        value = self.take(name)
        if value is None:
            return None
        return object_at(value, self.at(name))


def object_at(value: Any, path: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong_type(value, "an object", path)
    return Fields(value, path)


def typed_object(value: Any, path: str) -> tuple[Fields, str]:
    """An object and its ``type``."""
    fields = object_at(value, path)
    if (kind := fields.text("type")) is None:
        raise missing(f"{path}.type")
    return fields, kind


def checked_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", path)
    if "\0" in value:
        raise InvalidRequest(f"{path} holds the character U+0000.", param=path)
    return value


def checked_integer(value: Any, low: int, high: int, path: str) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # JSON does not tell 3 from 3.0
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, "an integer", path)
    if not low <= value <= high:
        limits = f"at least {low}" if high >= INT64.stop - 1 else f"between {low} and {high}"
        raise out_of_range(value, limits, path)
    return value


def checked_tokens(values: list[Any], path: str) -> tuple[int, ...]:
    """A prompt of token ids."""
    if not values:
        raise InvalidRequest(f"{path} must hold at least one token.", param=path)
    return tuple(
        checked_integer(value, 0, MOST_TOKEN_ID, f"{path}[{i}]") for i, value in enumerate(values)
    )


def checked_prompts(
    value: list[Any],
    path: str,
    *,
    most: int,
    noun: str,
    text: Callable[[Any, str], str] = checked_text,
) -> tuple[str | tuple[int, ...], ...]:
    """Of a list that is not empty: one prompt of token ids, or several prompts; the first element
    decides. ``text`` checks each that is text."""
    if not isinstance(value[0], str | list):
        return (checked_tokens(value, path),)
    if len(value) > most:
        raise wrong_count(len(value), f"at most {most}", noun, path)
    return tuple(
        checked_tokens(item, f"{path}[{i}]")
        if isinstance(item, list)
        else text(item, f"{path}[{i}]")
        for i, item in enumerate(value)
    )


def wrong_type(value: Any, wanted: str, path: str) -> InvalidType:
    found = _KINDS.get(type(value), "something else")
    return InvalidType(f"{path} must be {wanted}, not {found}.", param=path)


def out_of_range(value: object, limits: str, path: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is {value}; it must be {limits}.", param=path)


def wrong_count(count: int, limits: str, noun: str, path: str) -> InvalidRequest:
    return InvalidRequest(f"{path} has {count} {noun}; it must have {limits}.", param=path)


def missing(path: str) -> MissingParameter:
    return MissingParameter(f"The parameter {path} is required.", param=path)
