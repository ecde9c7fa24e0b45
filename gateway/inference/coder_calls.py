"""Calls as Qwen3-Coder writes them: tags, and values that are bare text.

    <tool_call>
    <function=f>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

What a value is, a text or JSON, is said by the function's parameters. A value is handed out once it
is complete.
"""

import json
import math
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

from gateway.inference.call_reader import Calls, NewId, Read, Shown, overlap
from gateway.inference.tools import Toolbox
from gateway.inference.written_json import parsed

CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_SPACE = " \t\r\n"
_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python has them
_KINDS: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",),
    list: ("array",), dict: ("object",), type(None): ("null",),
}  # fmt: skip


class _At(Enum):
    TEXT = auto()
    FUNCTION = auto()  # behind <tool_call>
    NAME = auto()
    PARAMETERS = auto()  # between two, or at the end
    KEY = auto()
    VALUE = auto()
    END = auto()  # behind </function>


class _Written:
    """A call that is being read, as ``Calls`` follows one."""

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self._ready = ""
        self._begun = False

    def add(self, key: str, value: Any) -> None:
        pair = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        self._ready += f", {pair}" if self._begun else f"{{{pair}"
        self._begun = True

    def end(self) -> None:
        self._ready += "}" if self._begun else "{}"

    def take(self) -> str:
        ready, self._ready = self._ready, ""
        return ready


class CoderReader:
    """A ``CallReader``."""

    def __init__(self, box: Toolbox, new_id: NewId) -> None:
        self._schemas = {tool.name: tool.parameters.schema for tool in box.tools}
        self._calls, self._shown = Calls(new_id), Shown()
        self._at = _At.TEXT
        self._held = ""
        self._call = _Written("")
        self._key = ""

    @property
    def called(self) -> bool:
        return bool(self._calls)

    def feed(self, text: str) -> Read:
        text, self._held = self._held + text, ""
        while text:
            text = self._step(text)
        return Read(self._shown.take(), self._calls.take())

    def flush(self) -> Read:
        if self._at is _At.TEXT:
            self._shown.add(self._held)
        elif self._at is _At.FUNCTION:
            self._shown.add(CALL + self._held)
        elif self._at is _At.NAME:
            self._shown.add(FUNCTION + self._held)
        self._held = ""
        if self._calls:
            self._shown.drop_space()
        self._shown.flush()
        return Read(self._shown.take(), self._calls.take())

    def _step(self, text: str) -> str:
        match self._at:
            case _At.TEXT:
                return self._in_text(text)
            case _At.FUNCTION:
                return self._skip(text, {FUNCTION: _At.NAME}, CALL)
            case _At.NAME:
                return self._in_name(text)
            case _At.PARAMETERS:
                return self._between(text)
            case _At.KEY:
                return self._in_key(text)
            case _At.VALUE:
                return self._in_value(text)
            case _At.END:
                return self._skip(text, {END_CALL: _At.TEXT}, "")

    def _in_text(self, text: str) -> str:
        starts = {CALL: _At.FUNCTION, FUNCTION: _At.NAME}
        found = [(at, tag) for tag in starts if (at := text.find(tag)) >= 0]
        if not found:
            keep = max(overlap(text, tag) for tag in starts)
            self._shown.add(text[: len(text) - keep])
            self._held = text[len(text) - keep :]
            return ""
        at, tag = min(found)
        self._shown.add(text[:at])
        self._at = starts[tag]
        return text[at + len(tag) :]

    def _skip(self, text: str, wanted: Mapping[str, _At], before: str) -> str:
        """White space, then one of these tags; else it is text, and so was what came before."""
        kept = text.lstrip(_SPACE)
        for tag, then in wanted.items():
            if kept.startswith(tag):
                self._at = then
                return kept[len(tag) :]
            if tag.startswith(kept):
                self._held = text
                return ""
        self._at = _At.TEXT
        self._shown.add(before)
        return text

    def _in_name(self, text: str) -> str:
        name, closed, rest = text.partition(">")
        if not closed:
            self._held = text
            return ""
        self._call, self._at = _Written(name.strip(_SPACE)), _At.PARAMETERS
        self._shown.drop_space()
        self._calls.follow(self._call)
        return rest

    def _between(self, text: str) -> str:
        kept = text.lstrip(_SPACE)
        if kept.startswith(PARAMETER):
            self._at = _At.KEY
            return kept[len(PARAMETER) :]
        if kept.startswith(END_FUNCTION):
            self._call.end()
            self._calls.follow(self._call)
            self._calls.close()
            self._at = _At.END
            return kept[len(END_FUNCTION) :]
        if any(tag.startswith(kept) for tag in (PARAMETER, END_FUNCTION)):
            self._held = kept
            return ""
        return kept[1:]  # says nothing

    def _in_key(self, text: str) -> str:
        key, closed, rest = text.partition(">")
        if not closed:
            self._held = text
            return ""
        self._key, self._at = key.strip(_SPACE), _At.VALUE
        return rest

    def _in_value(self, text: str) -> str:
        value, closed, rest = text.partition(END_PARAMETER)
        if not closed:
            self._held = text
            return ""
        value = value.removeprefix("\r").removeprefix("\n")
        value = value.removesuffix("\n").removesuffix("\r")
        schema = self._schemas.get(self._call.name or "", {})
        self._call.add(self._key, typed(value, schema, self._key))
        self._calls.follow(self._call)
        self._at = _At.PARAMETERS
        return rest


def typed(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """A value as the parameter wants it; a text where it is not that."""
    properties = schema.get("properties")
    wanted = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = set(kinds_of(wanted, schema)) if isinstance(wanted, Mapping) else {"string"}
    if kinds == {"string"}:
        return text
    word = text.strip(_SPACE)
    try:
        value = parsed(_WORDS.get(word, word))
    except ValueError:
        return text
    if "string" in kinds and not kinds.intersection(_KINDS[type(value)]):
        return text
    if isinstance(value, float) and value.is_integer() and "integer" in kinds - {"number"}:
        return int(value)
    return text if isinstance(value, float) and not math.isfinite(value) else value


def kinds_of(part: Mapping[str, Any], root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    """The JSON types that a schema allows, as far as it says so plainly."""
    reference = part.get("$ref")
    if isinstance(reference, str) and depth:
        found: Any = root
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            yield from kinds_of(found, root, depth - 1)
    kind = part.get("type")
    yield from (kind,) if isinstance(kind, str) else kind if isinstance(kind, list) else ()
    for value in (*_listed(part, "enum"), *((part["const"],) if "const" in part else ())):
        yield _KINDS.get(type(value), ("string",))[0]
    for name in ("anyOf", "oneOf"):
        for one in _listed(part, name):
            if isinstance(one, Mapping) and depth:
                yield from kinds_of(one, root, depth - 1)


def _listed(part: Mapping[str, Any], key: str) -> list[Any]:
    found = part.get(key)
    return found if isinstance(found, list) else []
