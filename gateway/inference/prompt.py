"""A request's words to the tokens an engine computes.

A chat is rendered by the model's template and tokenised with the control tokens that the template
wrote. A control token spelled out *inside* a message stays text: a marker breaks it apart before
rendering, and the rendered prompt is tokenised piece by piece between the markers. A message
without such spellings takes no marker, so its tokens are exactly those of the plain rendering.
Prompts of the completions endpoint are the caller's own, control tokens included.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from gateway.errors import ContextTooLong, InvalidRequest
from gateway.inference.messages import Message
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenizer import Tokenizer

LONG = 4096  # characters; tokenising more than this blocks the loop for over a millisecond


class Prompts:
    """Turns messages and prompts into tokens. ``threads`` runs the long ones."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, threads: Executor
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._threads = threads
        self._control = _spellings(tokenizer.special)

    async def of_chat(self, messages: Sequence[Message]) -> list[int]:
        """Raises InvalidRequest."""
        size = sum(len(message["content"]) for message in messages)
        if size <= LONG:
            return self._chat(messages)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._chat, messages)

    async def of_text(self, text: str, path: str = "prompt") -> list[int]:
        """Raises InvalidRequest."""
        tokens = (
            self._plain(text)
            if len(text) <= LONG
            else await asyncio.get_running_loop().run_in_executor(self._threads, self._plain, text)
        )
        if not tokens:
            raise InvalidRequest(f"{path} must not be empty.", param=path)
        return tokens

    def of_tokens(self, tokens: Sequence[int], path: str = "prompt") -> list[int]:
        """Raises InvalidRequest for an id beyond the vocabulary."""
        size = self.tokenizer.vocab_size
        for position, token in enumerate(tokens):
            if token >= size:
                raise InvalidRequest(
                    f"{path}[{position}] is {token}; the vocabulary has {size} tokens.",
                    param=f"{path}[{position}]",
                )
        return list(tokens)

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=True)

    def _chat(self, messages: Sequence[Message]) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions.", param="messages"
            )
        marker = f"\ufdd0{secrets.token_hex(8)}\ufdd1"  # nobody can guess it, so nobody writes it
        try:
            rendered = self._template.render([self._disarmed(m, marker) for m in messages])
        except RecursionError:
            raise InvalidRequest("A message is nested too deeply.", param="messages") from None
        tokens: list[int] = []
        for piece in rendered.split(marker):
            tokens += self.tokenizer.encode(piece, add_special=False)
        return tokens

    def _disarmed(self, value: Any, marker: str) -> Any:
        """The same message with a marker inside every spelling of a control token."""
        if isinstance(value, str):
            return self._control.sub(lambda found: found[1] + marker, value)
        if isinstance(value, dict):
            return {self._disarmed(k, marker): self._disarmed(v, marker) for k, v in value.items()}
        if isinstance(value, list):
            return [self._disarmed(item, marker) for item in value]
        return value


def require_room(tokens: int, context: int, *, param: str) -> int:
    """How many tokens may follow the prompt. Raises ContextTooLong with the numbers."""
    if tokens >= context:
        raise ContextTooLong(
            f"This model's maximum context length is {context} tokens. However, your prompt"
            f" has {tokens} tokens and at least one more must fit. Please shorten it.",
            param=param,
        )
    return context - tokens


def _spellings(special: frozenset[str]) -> re.Pattern[str]:
    """The first character of each spelling. The rest is not consumed: spellings may overlap."""
    words = [re.escape(word) for word in sorted(special) if len(word) > 1]
    return re.compile(f"(?=(?:{'|'.join(words) or '(?!)'}))(.)", re.DOTALL)
