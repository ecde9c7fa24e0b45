"""``structural_tag``: text in which what stands between certain tags must match a schema.

Two notations are in use: ``structures`` with ``triggers``, and ``format``, which nests. A trigger
ends the text before it as soon as it is complete; then one of the tags that begin with it follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.inference.fields import (
    Fields,
    checked_text,
    missing,
    object_at,
    out_of_range,
    typed_object,
)
from gateway.inference.schema import JsonSchema

MOST_TAGS = 128
MOST_DEPTH = 8
TEXT = "/(.|\\n)*/"
KINDS = ("const_string", "json_schema", "sequence", "or", "tag", "triggered_tags", "any_text")


@dataclass(slots=True)
class TagGrammar:
    """Rules in llguidance's notation while they are written."""

    rules: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # of the schemas, by their paths
    schemas: list[tuple[JsonSchema, str]] = field(default_factory=list)

    @classmethod
    def read(cls, given: Fields) -> "TagGrammar":
        """Raises InvalidRequest or one of its kinds."""
        grammar = cls()
        whole = given.take("format")
        if whole is None:
            tags = given.items("structures", MOST_TAGS)
            if not tags:
                raise missing(given.at("structures"))
            older = [{**tag, "content": None} if isinstance(tag, Mapping) else tag for tag in tags]
            start = grammar._triggered(given, older, given.at("structures"), 0)
        else:
            start = grammar._part(whole, given.at("format"), 0)
        grammar.rules.insert(0, f"start: {start}")
        return grammar

    @property
    def text(self) -> str:
        return "\n".join(self.rules)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _part(self, value: Any, path: str, depth: int) -> str:
        if depth > MOST_DEPTH:
            raise InvalidRequest(f"{path} is nested more than {MOST_DEPTH} deep.", param=path)
        given, kind = typed_object(value, path)
        match kind:
            case "const_string":
                if not (value := _text(given, "value")):
                    raise out_of_range("empty", "at least one character", given.at("value"))
                return _quoted(value)
            case "any_text":
                return TEXT
            case "json_schema":
                return self._schema(given.take("json_schema"), given.at("json_schema"))
            case "sequence" | "or":
                parts = given.items("elements", MOST_TAGS)
                if not parts:
                    raise missing(given.at("elements"))
                at = given.at("elements")
                each = [self._part(part, f"{at}[{i}]", depth + 1) for i, part in enumerate(parts)]
                return self._rule((" " if kind == "sequence" else " | ").join(each))
            case "tag":
                return self._tag(given, _text(given, "begin"), depth)
            case "triggered_tags":
                tags = given.items("tags", MOST_TAGS)
                if not tags:
                    raise missing(given.at("tags"))
                return self._triggered(given, tags, given.at("tags"), depth)
        raise UnsupportedParameter(
            f"{path}.type is {kind[:50]!r}; expected {', '.join(KINDS)}.", param=f"{path}.type"
        )

    def _schema(self, value: Any, path: str) -> str:
        schema = JsonSchema.read({} if value is None else value, path)
        self.schemas.append((schema, path))
        self.ignored += schema.ignored
        return self._rule(f"%json {schema.text(lenient=False)}")

    def _tag(self, given: Fields, begin: str, depth: int) -> str:
        """``begin``: what is yet to come of it."""
        end = given.text("end") or ""
        content = given.take("content")
        if content is None:  # the older notation
            inner = self._schema(given.take("schema"), given.at("schema"))
        elif isinstance(content, Mapping) and content.get("type") == "any_text" and end:
            return self._rule(f"{_quoted(begin)} {self._rule(f'{TEXT} {_quoted(end)}', lazy=True)}")
        else:
            inner = self._part(content, given.at("content"), depth + 1)
        return self._rule(f"{_quoted(begin)} {inner} {_quoted(end)}")

    def _triggered(self, given: Fields, tags: Sequence[Any], path: str, depth: int) -> str:
        triggers = self._triggers(given)
        follow: dict[str, list[str]] = {}
        for i, tag in enumerate(tags):
            one = object_at(tag, f"{path}[{i}]")
            begin = _text(one, "begin")
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise InvalidRequest(
                    f"{one.at('begin')} begins with none of the triggers.", param=one.at("begin")
                )
            rest = self._tag(one, begin[len(trigger) :], depth + 1)
            follow.setdefault(trigger, []).append(rest)
        called = [
            f"{self._rule(f'{TEXT} {_quoted(trigger)}', lazy=True)} ({' | '.join(rests)})"
            for trigger, rests in follow.items()
        ]
        one_of = self._rule(" | ".join(called))
        least, single = given.flag("at_least_one"), given.flag("stop_after_first")
        if single:
            return one_of if least else self._rule(f"{one_of} | {TEXT}")
        return self._rule(f"{f'{one_of} ' if least else ''}{one_of}* {TEXT}")

    def _triggers(self, given: Fields) -> list[str]:
        values = given.items("triggers", MOST_TAGS)
        path = given.at("triggers")
        if not values:
            raise missing(path)
        triggers = [checked_text(value, f"{path}[{i}]") for i, value in enumerate(values)]
        for i, trigger in enumerate(triggers):
            if not trigger:
                raise out_of_range("empty", "at least one character", f"{path}[{i}]")
            for other in triggers[:i]:
                if trigger.startswith(other) or other.startswith(trigger):
                    raise InvalidRequest(
                        f"{path}[{i}] and another trigger begin alike.", param=f"{path}[{i}]"
                    )
        return triggers


def _text(given: Fields, name: str) -> str:
    text = given.text(name)
    if text is None:
        raise missing(given.at(name))
    return text


def _quoted(text: str) -> str:
    """Nothing where it is empty: a grammar knows no empty string."""
    return orjson.dumps(text).decode() if text else ""
