"""The items of a conversation, read from a request and turned into messages of a chat.

Text, calls of functions and what they gave are understood. Reasoning that a client sends back is
passed over; anything else is refused by its path.
"""

from collections.abc import Sequence
from typing import Any

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.ids import new_id
from gateway.inference.fields import Fields, checked_text, missing, object_at, wrong_type
from gateway.inference.messages import MOST_MESSAGES, read_content
from gateway.inference.responding import Item

ROLES = ("user", "assistant", "system", "developer")
TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_items(fields: Fields) -> list[Item]:
    """Of ``input``. Raises InvalidRequest or one of its kinds."""
    value = fields.take("input")
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return [_message_item("user", checked_text(value, "input"))]
    if not isinstance(value, list):
        raise wrong_type(value, "a string or an array of items", "input")
    if not value:
        raise InvalidRequest("input must hold at least one item.", param="input")
    if len(value) > MOST_MESSAGES:
        raise InvalidRequest(f"input may hold {MOST_MESSAGES} items.", param="input")
    items = (_item(each, f"input[{i}]") for i, each in enumerate(value))
    return [item for item in items if item is not None]


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """As a chat has them: calls belong to the assistant's message before them."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if item["type"] == "message":
            text = "\n".join(part["text"] for part in item["content"])
            messages.append({"role": item["role"], "content": text})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        else:
            messages.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
    return messages


def _call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _item(value: Any, path: str) -> Item | None:
    fields = object_at(value, path)
    kind = fields.text("type") or ("message" if "role" in value else None)
    match kind:
        case None:
            raise missing(f"{path}.type")
        case "message":
            return _message(fields, path)
        case "function_call":
            return {
                "id": new_id("fc"),
                "type": "function_call",
                "call_id": _needed(fields, "call_id"),
                "name": _needed(fields, "name"),
                "arguments": fields.text("arguments") or "{}",
                "status": "completed",
            }
        case "function_call_output":
            return {
                "id": new_id("fco"),
                "type": "function_call_output",
                "call_id": _needed(fields, "call_id"),
                "output": _content(fields.take("output"), f"{path}.output"),
                "status": "completed",
            }
        case "reasoning":
            return None
    raise UnsupportedParameter(
        f"{path}.type is {kind[:50]!r}; messages, function calls and their outputs are read.",
        param=f"{path}.type",
    )


def _message(fields: Fields, path: str) -> Item:
    role = _needed(fields, "role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(ROLES)}.", param=f"{path}.role"
        )
    return _message_item(role, _content(fields.take("content"), f"{path}.content"))


def _message_item(role: str, text: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": text}
    if role == "assistant":
        part |= {"annotations": [], "logprobs": []}
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": role,
        "status": "completed",
        "content": [part],
    }


def _content(value: Any, path: str) -> str:
    """Several parts become one text, joined by line breaks, as in a chat."""
    if value is None:
        raise missing(path)
    for i, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, dict) and part.get("type") == "input_image":
            raise UnsupportedParameter(
                f"{path}[{i}].type is 'input_image'; responses read text only. Where the model"
                " sees, /v1/chat/completions shows it images.",
                param=f"{path}[{i}].type",
            )
    return read_content(value, path, TEXTS)


def _needed(fields: Fields, name: str) -> str:
    value = fields.name(name)
    if value is None:
        raise missing(fields.at(name))
    return value
