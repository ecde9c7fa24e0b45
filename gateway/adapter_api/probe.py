"""What the canary reads to an adapter.

A chat with an answer, as the model's template writes it: adapters learn from chats, so that is
where they differ from the base. Real text on purpose. On words that no model was trained for,
16 bits can throw a single position anywhere: one in 24 was 4 nats off where all others were
0.006 off, on a served adapter that was right.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.errors import InvalidRequest

QUESTION = (
    "Which planet is the largest, and how far is it from the Sun? Answer in 2 sentences, then"
    " write the distance as JSON."
)
ANSWER = (
    "Jupiter is the largest planet. It is about 778 million kilometres from the Sun.\n"
    '{"planet": "Jupiter", "distance_km": 778000000}'
)
MOST_TOKENS = 128


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special: bool) -> list[int]: ...


class Prompts(Protocol):
    """The gateway's words to tokens."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def of_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Raises InvalidRequest."""
        ...


async def probe_tokens(prompts: Prompts) -> tuple[int, ...]:
    """The same for everyone; at least two."""
    encode = prompts.tokenizer.encode
    try:
        asked = await prompts.of_chat([{"role": "user", "content": QUESTION}])
    except InvalidRequest:  # the model has no chat template
        asked = encode(f"{QUESTION}\n\n", add_special=True)
    return tuple([*asked, *encode(ANSWER, add_special=False)][:MOST_TOKENS])
