"""What a model may call: the tools of a chat, checked.

``tool_choice`` narrows them: ``none`` leaves none, a named function one that must be called,
``allowed_tools`` some of them. A function marked strict is held to its parameters; of others, what
cannot be enforced is left out and named in ``x-ignored-params``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.inference.fields import (
    Fields,
    missing,
    object_at,
    out_of_range,
    typed_object,
    wrong_type,
)
from gateway.inference.schema import ANY_OBJECT, JsonSchema
from gateway.inference.structure import NAME

MOST_TOOLS = 128
MOST_DESCRIPTION_CHARS = 1 << 16
_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"})


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: JsonSchema
    strict: bool
    path: str  # of its parameters
    shown: Mapping[str, Any]  # as chat templates read it


@dataclass(frozen=True, slots=True)
class Toolbox:
    """``tools`` may be called; the prompt shows them and what else was given."""

    tools: tuple[Tool, ...]
    shown: Sequence[Mapping[str, Any]]
    required: bool = False  # at least one call, and no text
    parallel: bool = True  # several calls
    path: str = "tools"  # the field that decides
    older: bool = False  # asked for as functions, so answered as one function_call

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def enforced(self) -> bool:
        """Calls are to be held to something."""
        return self.required or not self.parallel or any(tool.strict for tool in self.tools)


def read_tools(fields: Fields) -> Toolbox | None:
    """None where nothing may be called. Raises InvalidRequest or one of its kinds."""
    if not fields.has_any(_FIELDS):
        return None
    values = fields.items("tools", MOST_TOOLS) or []
    older = _functions(fields)
    if older is not None:
        if values:
            raise InvalidRequest("tools and functions exclude each other.", param="functions")
        return older if older.tools else None
    tools = tuple(_tool(value, f"tools[{i}]") for i, value in enumerate(values))
    _require_distinct(tools, "tools[{}].function.name")
    parallel = fields.flag("parallel_tool_calls", default=True)
    box = Toolbox(tools, [tool.shown for tool in tools], parallel=parallel)
    return _chosen(box, fields.take("tool_choice"))


def _functions(fields: Fields) -> Toolbox | None:
    """The form before tools: ``functions`` and ``function_call``. None where it is not used."""
    values = fields.items("functions", MOST_TOOLS)
    choice = fields.take("function_call")
    if not values and choice in (None, "none", "auto"):
        return None
    tools = tuple(
        _function(object_at(value, f"functions[{i}]")) for i, value in enumerate(values or ())
    )
    _require_distinct(tools, "functions[{}].name")
    shown = [tool.shown for tool in tools]
    box = Toolbox(tools, shown, parallel=False, path="functions", older=True)
    if choice is None or choice == "auto":
        return box
    if choice == "none":
        return replace(box, tools=())
    if isinstance(choice, str):
        raise InvalidRequest(
            "function_call must be none, auto, or an object that names a function.",
            param="function_call",
        )
    if not isinstance(choice, dict):
        raise wrong_type(choice, "a string or an object", "function_call")
    if not tools:
        raise InvalidRequest("function_call needs functions.", param="function_call")
    tool = _among(box, Fields(choice, "function_call"))
    return replace(box, tools=(tool,), required=True, path="function_call")


def _require_distinct(tools: Sequence[Tool], path: str) -> None:
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            at = path.format(i)
            raise InvalidRequest(f"{at}: there are two functions called {name!r}.", param=at)


def _chosen(box: Toolbox, choice: Any) -> Toolbox | None:
    if choice is None or choice == "auto":
        return box if box.tools else None
    if choice == "none":
        return None
    if choice == "required":
        _need(box)
        return replace(box, required=True, path="tool_choice")
    if isinstance(choice, str):
        raise InvalidRequest(
            "tool_choice must be none, auto, required, or an object that names a function.",
            param="tool_choice",
        )
    if not isinstance(choice, dict):
        raise wrong_type(choice, "a string or an object", "tool_choice")
    _need(box)
    given = Fields(choice, "tool_choice")
    match kind := given.text("type"):
        case "function":
            tool = _named(box, given, "function")
            return replace(box, tools=(tool,), required=True, parallel=False, path="tool_choice")
        case "allowed_tools":
            return _allowed(box, given)
    if kind is None:
        raise missing("tool_choice.type")
    raise UnsupportedParameter(
        f"tool_choice.type {kind[:50]!r} is not supported.", param="tool_choice.type"
    )


def _need(box: Toolbox) -> None:
    if not box.tools:
        raise InvalidRequest("tool_choice needs tools.", param="tool_choice")


def _allowed(box: Toolbox, choice: Fields) -> Toolbox:
    given = choice.object("allowed_tools") or choice  # OpenAI writes it both ways
    mode = given.text("mode") or "auto"
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            f"{given.at('mode')} must be auto or required.", param=given.at("mode")
        )
    values = given.items("tools", MOST_TOOLS)
    if not values:
        raise missing(given.at("tools"))
    tools = []
    for i, value in enumerate(values):
        path = f"{given.at('tools')}[{i}]"
        tools.append(_named(box, object_at(value, path), "function"))
    distinct = tuple({tool.name: tool for tool in tools}.values())
    return replace(box, tools=distinct, required=mode == "required", path="tool_choice")


def _named(box: Toolbox, given: Fields, field: str) -> Tool:
    """The tool that ``{"type": "function", "function": {"name": …}}`` names."""
    function = given.object(field)
    if function is None:
        raise missing(given.at(field))
    return _among(box, function)


def _among(box: Toolbox, function: Fields) -> Tool:
    name = function.name("name")
    if name is None:
        raise missing(function.at("name"))
    for tool in box.tools:
        if tool.name == name:
            return tool
    raise InvalidRequest(
        f"{function.at('name')}: there is no function {name!r} among the tools.",
        param=function.at("name"),
    )


def _tool(value: Any, path: str) -> Tool:
    given, kind = typed_object(value, path)
    if kind != "function":
        raise UnsupportedParameter(
            f"{path}.type is {kind[:50]!r}; a tool is a function here.", param=f"{path}.type"
        )
    function = given.object("function")
    if function is None:
        raise missing(f"{path}.function")
    return _function(function)


def _function(given: Fields) -> Tool:
    name = given.name("name")
    if name is None:
        raise missing(given.at("name"))
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{given.at('name')} must be 1 to 64 letters, digits, underscores or dashes.",
            param=given.at("name"),
        )
    description = given.text("description")
    if description and len(description) > MOST_DESCRIPTION_CHARS:
        raise out_of_range(
            f"{len(description)} characters long", f"at most {MOST_DESCRIPTION_CHARS}",
            given.at("description"),
        )  # fmt: skip
    strict, value = given.flag("strict"), given.take("parameters")
    path = given.at("parameters")
    schema = ANY_OBJECT if value is None else JsonSchema.read(value, path, lenient=not strict)
    if schema.schema.get("type", "object") != "object":
        raise InvalidRequest(f"{path} must be the schema of an object.", param=path)
    shown: dict[str, Any] = {"name": name}
    if description:
        shown["description"] = description
    shown["parameters"] = {"type": "object", "properties": {}} if value is None else value
    if "type" not in schema.schema:
        schema = JsonSchema({**schema.schema, "type": "object"}, schema.ignored)
    return Tool(name, schema, strict, path, {"type": "function", "function": shown})
