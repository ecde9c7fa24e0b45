"""A request's words to the tokens an engine computes.

A chat is rendered by the model's template and tokenised with the control tokens that the template
wrote. A control token spelled out *inside* a message stays text: a marker breaks it apart before
rendering, and the rendered prompt is tokenised piece by piece between the markers. A message
without such spellings takes no marker, so its tokens are exactly those of the plain rendering.
Prompts of the completions endpoint are the caller's own, control tokens included.

Where the model sees, an image is one placeholder in the tokens of a chat. Templates that go through
a message's parts write it themselves; for the others it stands on a line before the text.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from gateway.errors import ContextTooLong, InvalidRequest
from gateway.inference.detokenize import Detokenizer
from gateway.inference.messages import Message
from gateway.inference.rendering import PLAIN, Rendering
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenizer import Tokenizer, TokenizerInvalid

LONG = 4096  # characters; tokenising more than this blocks the loop for over a millisecond
TURN = 64  # characters that a message costs as much time as, besides its text
T = TypeVar("T")


class Prompts:
    """Turns messages and prompts into tokens. ``threads`` runs the long ones."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        threads: Executor,
        *,
        placeholder: int | None = None,
    ) -> None:
        """``placeholder``: stands for an image; None where the model reads text alone.

        Raises TokenizerInvalid where that is no token.
        """
        self.tokenizer = tokenizer
        self._template = template
        self._threads = threads
        self._image = _image_of(tokenizer, placeholder)
        own = () if self._image is None else (self._image,)
        self._control = _spellings(tokenizer.special.union(own))
        self._begins = {word[0] for word in tokenizer.special.union(own) if len(word) > 1}

    @property
    def template(self) -> str | None:
        """The chat template's source; None where the model has none."""
        return self._template.source if self._template else None

    async def of_chat(self, messages: Sequence[Message], how: Rendering = PLAIN) -> list[int]:
        """Raises InvalidRequest."""
        if _is_short(messages, how):
            return self._chat(messages, how)
        return await self._aside(partial(self._chat, messages, how))

    async def of_text(
        self, text: str, path: str = "prompt", *, add_special: bool = True
    ) -> list[int]:
        """Raises InvalidRequest."""
        encode = partial(self.tokenizer.encode, text, add_special=add_special)
        tokens = encode() if len(text) <= LONG else await self._aside(encode)
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

    async def text_of(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """What these tokens say; control tokens say nothing, or with ``special`` their names."""
        read = partial(_read, self.tokenizer, tokens, special)
        return read() if len(tokens) <= LONG else await self._aside(read)

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _chat(self, messages: Sequence[Message], how: Rendering = PLAIN) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions.", param="messages"
            )
        marker = f"\ufdd0{secrets.token_hex(8)}\ufdd1"  # nobody can guess it, so nobody writes it
        try:
            rendered = self._render(messages, how, marker)
        except RecursionError:
            raise InvalidRequest("A message is nested too deeply.", param="messages") from None
        tokens: list[int] = []
        for piece in rendered.split(marker) if marker in rendered else (rendered,):
            tokens += self.tokenizer.encode(piece, add_special=False)
        return tokens

    def _render(self, messages: Sequence[Message], how: Rendering, marker: str) -> str:
        assert self._template is not None
        safe = [self._disarmed(message, marker) for message in messages]
        if how.tools or how.extra:
            how = replace(
                how,
                tools=self._disarmed(how.tools, marker),
                extra=self._disarmed(how.extra, marker),
            )
        end = f"\ufdd2{marker}"
        if how.continues:
            safe[-1] = _followed(safe[-1], end)
        if self._image is not None:
            shape = as_parts if self._template.reads_parts else partial(as_text, self._image)
            safe = [shape(message) for message in safe]
        if not how.continues:
            return self._template.render(safe, how)
        rendered, found, _ = self._template.render(safe, how).rpartition(end)
        if not found:
            raise InvalidRequest(
                "The model's chat template does not show the end of the last message, so it cannot"
                " be continued.",
                param="continue_final_message",
            )
        return rendered

    def _disarmed(self, value: Any, marker: str) -> Any:
        """The same message with a marker inside every spelling of a control token."""
        if isinstance(value, str):
            if not any(map(value.__contains__, self._begins)):
                return value  # as most texts: where no spelling can begin none needs to be found
            return self._control.sub(lambda found: found[1] + marker, value)
        if isinstance(value, Mapping):
            return {self._disarmed(k, marker): self._disarmed(v, marker) for k, v in value.items()}
        if isinstance(value, list):
            return [self._disarmed(item, marker) for item in value]
        return value


def _is_short(messages: Sequence[Message], how: Rendering) -> bool:
    """What is more than text has no size that is cheap to know."""
    if how.tools or how.extra or any("tool_calls" in message for message in messages):
        return False
    return sum(_length(message["content"]) + TURN for message in messages) <= LONG


def _length(content: str | Sequence[Mapping[str, str]]) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) + TURN for part in content)


def _followed(message: Message, end: str) -> Message:
    """The message with this at its end."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + end}
    return {**message, "content": [*content, {"type": "text", "text": end}]}


def as_parts(message: Message) -> Message:
    content = message["content"]
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def as_text(image: str, message: Message) -> Message:
    """Images first, each on a line, then the text."""
    content = message["content"]
    if isinstance(content, str):
        return message
    shown = [image for part in content if part["type"] == "image"]
    texts = [part["text"] for part in content if part["type"] == "text"]
    return {**message, "content": "\n".join([*shown, *texts])}


def _image_of(tokenizer: Tokenizer, placeholder: int | None) -> str | None:
    """How the placeholder is spelled."""
    if placeholder is None:
        return None
    spelled = tokenizer.spelling_of(placeholder).decode("utf-8", "replace")
    if tokenizer.encode(spelled, add_special=False) != [placeholder]:
        raise TokenizerInvalid(
            f"config.json: image_token_index={placeholder} is not a token by itself in"
            f" tokenizer.json ({spelled!r})"
        )
    return spelled


def _read(tokenizer: Tokenizer, tokens: Sequence[int], special: bool) -> str:
    detokenizer = Detokenizer(tokenizer, special=special)
    return detokenizer.feed(tokens) + detokenizer.flush()


def require_room(tokens: int, context: int, *, param: str, answered: bool = True) -> int:
    """How many tokens may follow the prompt. Raises ContextTooLong with the numbers.

    ``answered``: at least one has to; a text that becomes a vector may fill the context.
    """
    if tokens > context - answered:
        needed = " and at least one more must fit" if answered else ""
        raise ContextTooLong(
            f"This model's maximum context length is {context} tokens. However, your prompt"
            f" has {tokens} tokens{needed}. Please shorten it.",
            param=param,
        )
    return max(context - tokens, 1)


def _spellings(special: frozenset[str]) -> re.Pattern[str]:
    """The first character of each spelling. The rest is not consumed: spellings may overlap."""
    words = [re.escape(word) for word in sorted(special) if len(word) > 1]
    return re.compile(f"(?=(?:{'|'.join(words) or '(?!)'}))(.)", re.DOTALL)
