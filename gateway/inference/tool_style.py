"""How a model writes calls: what its answers are held to, and how they are read.

    hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>, anywhere in the text
    llama3_json  {"name": …, "parameters": {…}}; …, or else all is text
    mistral      [TOOL_CALLS] [{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…}
    qwen3_coder  <tool_call><function=name><parameter=key>value</parameter></function></tool_call>

A model that may call is held to this notation as far as its tools ask for it: a required call, one
call at most, a strict function. Then names and arguments are right by construction.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.inference.call_reader import BareReader, CallReader, NewId, TaggedReader
from gateway.inference.coder_calls import CoderReader, kinds_of
from gateway.inference.mistral_calls import MARKS, MistralReader
from gateway.inference.schema import DEFINITIONS, JsonSchema
from gateway.inference.structure import Notation, Structure, of_schema, quoted
from gateway.inference.tools import Tool, Toolbox

AUTO = "auto"


class ToolStyle(ABC):
    name: str
    arguments: str  # the key of a call's arguments
    opens: str  # what is before a call
    closes: str
    joins: str  # between two calls
    marks: Sequence[str] = ()  # control tokens that the reader has to see

    @abstractmethod
    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        """For one choice."""

    @abstractmethod
    def _free(self, *, several: bool) -> Sequence[str]:
        """Rules from ``start`` on of an answer that may be text; ``call`` is the rule of one."""

    def structure(self, box: Toolbox, text: Structure | None) -> Structure | None:
        """What an answer must match that may call; ``text``: what it must match otherwise."""
        if text is None and (not box.enforced or self.unheld(box)):
            return None
        rules = self._rules(box, text)
        for number, tool in enumerate(box.tools):
            rules += self._call(number, tool)
        either = " | ".join(f"call_{number}" for number in range(len(box.tools)))
        rules.append(f"call: {quoted(self.opens)} body" if self.opens else "call: body")
        rules.append(
            f"body: ({either}) {quoted(self.closes)}" if self.closes else f"body: {either}"
        )
        ignored = tuple(path for tool in box.tools for path in tool.parameters.ignored)
        return Structure(
            box.path, Notation.LARK, "\n".join(rules), ignored=ignored, parts=_parts(box.tools)
        )

    def unheld(self, box: Toolbox) -> tuple[str, ...]:
        """What is asked of calls and cannot be enforced: paths."""
        return ()

    def _call(self, number: int, tool: Tool) -> list[str]:
        """The rules of one tool's call."""
        head = quoted(f'{{"name": "{tool.name}", "{self.arguments}": ')
        schema = tool.parameters.text(lenient=not tool.strict)
        return [
            f"call_{number}: {head} arguments_{number} {quoted('}')}",
            f"arguments_{number}: %json {schema}",
        ]

    def _rules(self, box: Toolbox, text: Structure | None) -> list[str]:
        several = f"call ({quoted(self.joins)} call)*" if box.parallel else "call"
        if box.required:
            return [f"start: {several}"]
        if text is None:
            return list(self._free(several=box.parallel))
        if text.schema is None or not self.opens:  # such calls and answers begin alike
            raise InvalidRequest(
                f"{text.path} and tools exclude each other with this model; set tool_choice to"
                " none or required.",
                param=text.path,
            )
        return [f"start: {several} | answer", f"answer: %json {text.source}"]


class Hermes(ToolStyle):
    name = "hermes"
    arguments = "arguments"
    opens, closes, joins = "<tool_call>\n", "\n</tool_call>", "\n"

    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        return TaggedReader("<tool_call>", "</tool_call>", new_id)

    def _free(self, *, several: bool) -> Sequence[str]:
        """The tag ends a text before it, as soon as it is complete."""
        return (
            "start: called* TEXT" if several else "start: called | TEXT",
            "TEXT: /(.|\\n)*/",
            'tag[lazy]: TEXT "<tool_call>"',
            f"called: tag {quoted(self.opens.removeprefix('<tool_call>'))} body",
        )


class Llama3(ToolStyle):
    name = "llama3_json"
    arguments = "parameters"
    opens, closes, joins = "", "", "; "

    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        return BareReader(box.names, new_id)

    def _free(self, *, several: bool) -> Sequence[str]:
        more = f" ({quoted(self.joins)} call)*" if several else ""
        return (f"start: call{more} | TEXT", "TEXT: /([^{ \\n\\t](.|\\n)*)?/")


class Coder(Hermes):
    name = "qwen3_coder"

    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        return CoderReader(box, new_id)

    def _call(self, number: int, tool: Tool) -> list[str]:
        """Values of texts end at their tag; others are JSON."""
        schema = tool.parameters.schema
        required = schema.get("required", ())
        properties: Mapping[str, Any] = schema.get("properties", {})
        definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
        order, rules = [], list[str]()
        for i, (key, part) in enumerate(properties.items()):
            name = f"value_{number}_{i}"
            order.append(f"{name}{'' if key in required else '?'}")
            begin, part = quoted(f"<parameter={key}>\n"), part if isinstance(part, Mapping) else {}
            ends = quoted("\n</parameter>\n")
            if set(kinds_of(part, schema)) == {"string"} and "enum" not in part:
                rules.append(f"{name}: {begin} rest_{number}_{i}")
                rules.append(f"rest_{number}_{i}[lazy]: /(.|\n)*/ {ends}")
                continue
            if words := part.get("enum"):
                fitting = [word if isinstance(word, str) else json.dumps(word) for word in words]
                rules.append(f"{name}: {begin} ({' | '.join(map(quoted, fitting))}) {ends}")
                continue
            text = JsonSchema({**definitions, **part}, ()).text(lenient=not tool.strict)
            rules.append(f"{name}: {begin} json_{number}_{i} {ends}")
            rules.append(f"json_{number}_{i}: %json {text}")
        head, end = quoted(f"<function={tool.name}>\n"), quoted("</function>")
        return [f"call_{number}: {head} {' '.join(order)} {end}", *rules]


class Mistral(ToolStyle):
    """Where calls are required they are held to the older notation. Elsewhere nothing is: the
    control token that begins a call is none that a grammar of text allows."""

    name = "mistral"
    arguments = "arguments"
    opens, closes, joins = "", "", ", "
    marks = MARKS

    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        return MistralReader(new_id)

    def unheld(self, box: Toolbox) -> tuple[str, ...]:
        if box.required:
            return ()
        strict = (f"{tool.path.rpartition('.')[0]}.strict" for tool in box.tools if tool.strict)
        return (*strict, *(() if box.parallel else ("parallel_tool_calls",)))

    def _rules(self, box: Toolbox, text: Structure | None) -> list[str]:
        (start,) = super()._rules(box, text)
        several = start.removeprefix("start: ")
        return [f"start: {quoted('[TOOL_CALLS] [')} {several} {quoted(']')}"]

    def _free(self, *, several: bool) -> Sequence[str]:
        raise AssertionError("what is not required is not held to anything")


STYLES: dict[str, ToolStyle] = {
    style.name: style for style in (Hermes(), Llama3(), Mistral(), Coder())
}


def _parts(tools: Sequence[Tool]) -> tuple[Structure, ...]:
    """Each tool's parameters alone, to say which of them is at fault."""
    return tuple(of_schema(t.parameters, t.path, lenient=not t.strict) for t in tools)


def detected(template: str) -> ToolStyle | None:
    """The style that a chat template teaches; None when it teaches another."""
    if "<function=" in template:
        return STYLES["qwen3_coder"] if "<parameter=" in template else None
    if "[TOOL_CALLS]" in template:
        return STYLES["mistral"]
    if "<tool_call>" in template:
        return STYLES["hermes"]
    if "<|python_tag|>" in template or ('"parameters"' in template and "ipython" in template):
        return STYLES["llama3_json"]
    return None
