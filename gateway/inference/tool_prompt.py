"""Tools for a model whose chat template knows none: told in words, in the Hermes notation.

The tools become part of the system message, earlier calls the text that would have made them, and
results a user's turn. Templates that know tools write all of this themselves.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.inference.messages import Message

_TAUGHT = """\
You may call functions to answer the user. Their signatures:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def told(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation in plain messages."""
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _answer(plain, message["content"])
        elif calls := message.get("tool_calls"):
            parts = [message["content"], *map(_called, calls)]
            text = "\n".join(part for part in parts if part)
            plain.append({"role": "assistant", "content": text})
        else:
            plain.append(message)
    return _taught(plain, tools) if tools else plain


def _answer(plain: list[Message], content: str) -> None:
    """Results that follow each other share a turn: many templates want turns to alternate."""
    text = f"<tool_response>\n{content}\n</tool_response>"
    if plain and plain[-1].get("results"):
        plain[-1] = {**plain[-1], "content": f"{plain[-1]['content']}\n{text}"}
    else:
        plain.append({"role": "user", "content": text, "results": True})


def _called(call: Mapping[str, Any]) -> str:
    function = call["function"]
    written = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>"


def _taught(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    taught = _TAUGHT.format(tools=lines)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": taught}, *messages]
    first = messages[0]
    return [{**first, "content": f"{first['content']}\n\n{taught}"}, *messages[1:]]
