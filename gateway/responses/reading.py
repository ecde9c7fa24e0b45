"""A request to ``/v1/responses`` as a chat, so that all that holds for chats holds here.

Fields with another name or shape there are turned into the chat's; an error about one of those is
told with the name it has here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError, InvalidRequest, UnsupportedParameter
from gateway.inference.body import Object
from gateway.inference.fields import Fields, typed_object, wrong_type
from gateway.inference.responding import Item
from gateway.responses.items import messages_of, read_items

# As a chat has them.
SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "stop",
    "stop_token_ids", "ignore_eos", "stream", "user", "safety_identifier", "metadata",
    "service_tier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls",
    "chat_template_kwargs", "allowed_token_ids", "bad_words",
)  # fmt: skip
# Would change what is answered, or where it is found.
REFUSED = ("background", "conversation", "prompt", "context_management")
# Changes nothing about the answer here.
IGNORED = frozenset({
    "include", "max_tool_calls", "moderation", "prompt_cache_options", "reasoning",
    "stream_options", "text.verbosity", "truncation",
})  # fmt: skip
LOGPROBS = "message.output_text.logprobs"
RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    ".function.": ".",
}
# What a response repeats of its request, and what it says where nothing was given.
SHOWN: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None}, "safety_identifier": None,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    instructions: str | None
    items: Sequence[Item]
    previous: str | None
    store: bool
    chat: Mapping[str, Any]  # the body of a chat, its messages left out
    settings: Mapping[str, Any]
    ignored: tuple[str, ...]

    def chat_body(self, before: Sequence[Item]) -> Object:
        messages = messages_of(self.instructions, [*before, *self.items])
        return {**self.chat, "messages": messages}


def read_response(body: Object) -> ResponseRequest:
    """Raises InvalidRequest or one of its kinds."""
    fields = Fields(body)
    for name in REFUSED:
        if fields.take(name):
            raise UnsupportedParameter(f"{name} is not supported.", param=name)
    items = read_items(fields)
    instructions = fields.text("instructions")
    previous = fields.name("previous_response_id")
    store = fields.flag("store", default=True)
    chat = {name: body[name] for name in SAME if fields.take(name) is not None}
    chat["max_completion_tokens"] = fields.integer("max_output_tokens", 1)
    text = fields.object("text")
    chat |= _logprobs(fields) | _format(text) | _tools(fields)
    settings = {name: _shown(body, name, unsaid) for name, unsaid in SHOWN.items()}
    return ResponseRequest(
        instructions=instructions,
        items=items,
        previous=previous,
        store=store,
        chat={name: value for name, value in chat.items() if value is not None},
        settings=settings,
        ignored=(*sorted(fields.unread), *_unread_inside(body, text)),
    )


def renamed(error: GatewayError) -> GatewayError:
    """The same, about the fields of a response."""
    for chat, ours in RENAMED.items():
        error.message = error.message.replace(chat, ours)
        error.param = error.param.replace(chat, ours) if error.param else None
    return error


def _shown(body: Object, name: str, unsaid: Any) -> Any:
    value = body.get(name)
    return unsaid if value is None else value


def _logprobs(fields: Fields) -> dict[str, Any]:
    include = fields.items("include", 16) or []
    top = fields.integer("top_logprobs", 0, 20)
    if LOGPROBS not in include and not top:
        return {}
    return {"logprobs": True, "top_logprobs": top or 0}


def _unread_inside(body: Object, text: Fields | None) -> list[str]:
    """What is passed over of fields that are followed in part."""
    found = [] if text is None else [text.at(name) for name in sorted(text.unread)]
    if any(wanted != LOGPROBS for wanted in body.get("include") or ()):
        found.append("include")
    return found


def _format(text: Fields | None) -> dict[str, Any]:
    given = text.object("format") if text is not None else None
    if given is None:
        return {}
    kind = given.text("type")
    if kind != "json_schema":
        return {"response_format": {"type": kind}}
    names = ("name", "schema", "strict", "description")
    schema = {name: value for name in names if (value := given.take(name)) is not None}
    return {"response_format": {"type": kind, "json_schema": schema}}


def _tools(fields: Fields) -> dict[str, Any]:
    tools = fields.items("tools", 128) or []
    found: dict[str, Any] = {}
    if tools:
        found["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    choice = fields.take("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice = {"type": "allowed_tools", "allowed_tools": _allowed(choice)}
    if choice is not None:
        found["tool_choice"] = choice
    return found


def _allowed(choice: Mapping[str, Any]) -> dict[str, Any]:
    tools = choice.get("tools")
    if not isinstance(tools, list):
        raise wrong_type(tools, "an array", "tool_choice.tools")
    named = [
        {"type": "function", "function": {"name": tool.get("name")}}
        for tool in tools
        if isinstance(tool, dict)
    ]
    return {"mode": choice.get("mode", "auto"), "tools": named}


def _tool(value: Any, path: str) -> dict[str, Any]:
    _, kind = typed_object(value, path)
    if kind != "function":
        raise UnsupportedParameter(
            f"{path}.type is {kind[:50]!r}; functions are the tools there are.",
            param=f"{path}.type",
        )
    names = ("name", "description", "parameters", "strict")
    function = {name: value[name] for name in names if value.get(name) is not None}
    if "name" not in function:
        raise InvalidRequest(f"{path}.name is required.", param=f"{path}.name")
    return {"type": "function", "function": function}
