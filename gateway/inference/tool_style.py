"""How a model writes calls: what its answers are held to, and how they are read.

    hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>, anywhere in the text
    llama3_json  {"name": …, "parameters": {…}}; …, or else all is text

A model that may call is held to this notation as far as its tools ask for it: a required call, one
call at most, a strict function. Then names and arguments are right by construction.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gateway.errors import InvalidRequest
from gateway.inference.call_reader import BareReader, CallReader, NewId, TaggedReader
from gateway.inference.structure import Notation, Structure, of_schema, quoted
from gateway.inference.tools import Tool, Toolbox

AUTO = "auto"


class ToolStyle(ABC):
    name: str
    arguments: str  # the key of a call's arguments
    opens: str  # what is before a call
    closes: str
    joins: str  # between two calls

    @abstractmethod
    def reader(self, box: Toolbox, new_id: NewId) -> CallReader:
        """For one choice."""

    @abstractmethod
    def _free(self, *, several: bool) -> Sequence[str]:
        """Rules from ``start`` on of an answer that may be text; ``call`` is the rule of one."""

    def structure(self, box: Toolbox, text: Structure | None) -> Structure | None:
        """What an answer must match that may call; ``text``: what it must match otherwise."""
        if not box.enforced and text is None:
            return None
        rules = self._rules(box, text)
        for number, tool in enumerate(box.tools):
            head = quoted(f'{{"name": "{tool.name}", "{self.arguments}": ')
            rules.append(f"call_{number}: {head} arguments_{number} {quoted('}')}")
            schema = tool.parameters.text(lenient=not tool.strict)
            rules.append(f"arguments_{number}: %json {schema}")
        either = " | ".join(f"call_{number}" for number in range(len(box.tools)))
        rules.append(f"call: {quoted(self.opens)} body" if self.opens else "call: body")
        rules.append(
            f"body: ({either}) {quoted(self.closes)}" if self.closes else f"body: {either}"
        )
        ignored = tuple(path for tool in box.tools for path in tool.parameters.ignored)
        return Structure(
            box.path, Notation.LARK, "\n".join(rules), ignored=ignored, parts=_parts(box.tools)
        )

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


STYLES: dict[str, ToolStyle] = {style.name: style for style in (Hermes(), Llama3())}


def _parts(tools: Sequence[Tool]) -> tuple[Structure, ...]:
    """Each tool's parameters alone, to say which of them is at fault."""
    return tuple(of_schema(t.parameters, t.path, lenient=not t.strict) for t in tools)


def detected(template: str) -> ToolStyle | None:
    """The style that a chat template teaches; None when it teaches another."""
    if "<function=" in template:  # calls in tags of their own
        return None
    if "<tool_call>" in template:
        return STYLES["hermes"]
    if "<|python_tag|>" in template or ('"parameters"' in template and "ipython" in template):
        return STYLES["llama3_json"]
    return None
