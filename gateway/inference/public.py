"""Beginnings of prompts that the operator declares public: their KV is shared by all projects.

Otherwise nobody finds what another project computed, nor sees by the time that somebody did. Only
of the base: what an adapter computed is its owner's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.config import ConfigError
from gateway.errors import InvalidRequest
from gateway.inference.prompt import Prompts


@dataclass(frozen=True, slots=True)
class PublicBeginnings:
    tokens: tuple[tuple[int, ...], ...] = ()

    @classmethod
    async def of_system(cls, messages: Sequence[str], prompts: Prompts) -> "PublicBeginnings":
        """Of chats that begin with one of these system messages. Raises ConfigError."""
        try:
            found = [
                tuple(await prompts.of_chat([{"role": "system", "content": text}]))
                for text in messages
            ]
        except InvalidRequest as error:
            raise ConfigError(f"public_system_prompts: {error.message}") from error
        return cls(tuple(found))

    def length(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's first tokens are those of a public beginning."""
        return max((_common(prompt, public) for public in self.tokens), default=0)


def _common(prompt: Sequence[int], public: Sequence[int]) -> int:
    pairs = enumerate(zip(prompt, public, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(prompt), len(public)))
