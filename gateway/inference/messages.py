"""The messages of a chat: checked, and flattened to what a chat template reads.

Several text parts become one text, joined by line breaks. Where the model sees, a user's message
may show images, which an ``Album`` takes; its content is then a list of parts, as templates know
them, in which an image is ``{"type": "image"}``. Any other part is refused by its path.
``developer`` is the newer word for ``system``.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.inference.album import Album
from gateway.inference.fields import (
    Fields,
    checked_text,
    missing,
    object_at,
    typed_object,
    wrong_type,
)
from gateway.inference.written_json import parsed

Message = Mapping[str, Any]  # role, content and, where given, name, tool_calls, tool_call_id
ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip
TEXTS = {"text": "text", "refusal": "refusal"}
IMAGE, BOTH = "image_url", "text and images"
MOST_MESSAGES = 10_000


def read_messages(fields: Fields, album: Album | None = None) -> tuple[Message, ...]:
    """``album``: takes the images; None where the model reads text alone.

    Raises InvalidRequest or one of its kinds, with the path of the part at fault.
    """
    path = fields.at("messages")
    values = fields.items("messages", MOST_MESSAGES)
    if values is None:
        raise missing(path)
    if not values:
        raise InvalidRequest(f"{path} must hold at least one message.", param=path)
    return tuple(_message(value, f"{path}[{i}]", album) for i, value in enumerate(values))


def _message(value: Any, path: str, album: Album | None) -> Message:
    fields = object_at(value, path)
    role = fields.text("role")
    if role is None:
        raise missing(f"{path}.role")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise InvalidRequest(f"{path}.role must be one of {known}.", param=f"{path}.role")
    message: dict[str, Any] = {"role": ROLES[role]}
    calls = _tool_calls(fields) if role == "assistant" else []
    if role == "assistant" and (older := fields.object("function_call")) is not None:
        calls.append(_call(older, None))
    content = fields.take("content")
    if album is not None and _shows(content):
        if role != "user":
            raise UnsupportedParameter(
                f"{path}.content: images are read in messages of the role user only.",
                param=f"{path}.content",
            )
        message["content"] = _parts(content, f"{path}.content", album)
    else:
        message["content"] = _content(content, f"{path}.content", optional=bool(calls))
    if calls:
        message["tool_calls"] = calls
    name = fields.name("name")
    if name:
        message["name"] = name
    if role == "function":  # the form before tools: a function's name stands for its call
        if not name:
            raise missing(f"{path}.name")
        message["tool_call_id"] = older_id(name)
    elif role == "tool":
        if (call := fields.name("tool_call_id")) is None:
            raise missing(f"{path}.tool_call_id")
        message["tool_call_id"] = call
    return message


def _content(value: Any, path: str, *, optional: bool) -> str:
    if value is None:
        if optional:
            return ""
        raise InvalidRequest(
            f"{path} must be a string or an array of parts; null is only for an assistant"
            " message with tool_calls.",
            param=path,
        )
    return read_content(value, path, TEXTS)


def read_content(value: Any, path: str, texts: Mapping[str, str]) -> str:
    """A text, or several parts of the kinds in ``texts``, which says where each has its text."""
    if isinstance(value, str):
        return checked_text(value, path)
    if not isinstance(value, list):
        raise wrong_type(value, "a string or an array of parts", path)
    if not value:
        raise InvalidRequest(f"{path} must hold at least one part.", param=path)
    return "\n".join(_part(part, f"{path}[{i}]", texts) for i, part in enumerate(value))


def _shows(content: Any) -> bool:
    """Some part of it is an image."""
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") == IMAGE for part in parts)


def _parts(values: list[Any], path: str, album: Album) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for i, value in enumerate(values):
        fields, kind = typed_object(value, f"{path}[{i}]")
        if kind == IMAGE:
            album.add(fields)
            parts.append({"type": "image"})
        else:
            parts.append({"type": "text", "text": _part(value, f"{path}[{i}]", TEXTS, BOTH)})
    return parts


def _part(value: Any, path: str, texts: Mapping[str, str], read: str = "text") -> str:
    fields, kind = typed_object(value, path)
    if kind not in texts:
        raise UnsupportedParameter(
            f"{path}.type is {kind[:50]!r}; this model reads {read} only.", param=f"{path}.type"
        )
    text = fields.text(texts[kind])
    if text is None:
        raise missing(f"{path}.{texts[kind]}")
    return text


def _tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Earlier calls in the conversation, their arguments as objects: what templates expect."""
    calls = []
    for i, value in enumerate(fields.items("tool_calls", 128) or []):
        path = f"{fields.at('tool_calls')}[{i}]"
        call = object_at(value, path)
        function = call.object("function")
        if function is None:
            raise missing(f"{path}.function")
        calls.append(_call(function, call.name("id") or ""))
    return calls


def _call(function: Fields, number: str | None) -> dict[str, Any]:
    """``number``: its id; None: it is of the form before tools."""
    name, arguments = function.name("name"), function.text("arguments")
    if name is None:
        raise missing(function.at("name"))
    return {
        "id": older_id(name) if number is None else number,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(arguments or "{}")},
    }


def older_id(name: str) -> str:
    return f"function_{name}"


def _arguments(text: str) -> Any:
    """What a model wrote need not be JSON; then the template sees it as it was."""
    try:
        return parsed(text)
    except ValueError:
        return text
