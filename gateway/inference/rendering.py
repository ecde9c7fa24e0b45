"""How a chat becomes a prompt, besides its messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import InvalidRequest
from gateway.inference.fields import Fields

PACE = "__pace__"
# What a template is given by us; nobody may name it anew.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", PACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    opens_turn: bool = True  # the assistant's turn is begun
    continues: bool = False  # the last message is not complete: the answer goes on from its end
    tools: Sequence[Mapping[str, Any]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # more that this template knows


PLAIN = Rendering()


def read_rendering(fields: Fields) -> Rendering:
    """Raises InvalidRequest."""
    continues = fields.flag("continue_final_message")
    opens = fields.flag("add_generation_prompt", default=not continues)
    if continues and opens:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other.",
            param="continue_final_message",
        )
    return Rendering(opens_turn=opens, continues=continues, extra=_extra(fields))


def _extra(fields: Fields) -> Mapping[str, Any]:
    given = fields.object("chat_template_kwargs")
    if given is None:
        return {}
    for name in sorted(given.unread & RESERVED):
        raise InvalidRequest(f"{given.at(name)} is not for clients to set.", param=given.at(name))
    return {name: given.take(name) for name in sorted(given.unread)}
