"""What a client may ask of the two generating endpoints."""

import msgspec

from gateway.errors import InvalidRequest
from gateway.inference.album import Album
from gateway.inference.body import Object
from gateway.inference.fields import Fields, checked_prompts, checked_text, missing, wrong_type
from gateway.inference.messages import Message, read_messages
from gateway.inference.options import Options, read_model, read_options
from gateway.inference.recommended import Recommended
from gateway.inference.rendering import Rendering, read_rendering
from gateway.inference.sampling import UNSAID
from gateway.inference.tools import Toolbox, read_tools

MOST_ALTERNATIVES = 20
MOST_PROMPTS = 256
UNSAID_COMPLETION = 16  # tokens of a completion whose client names no maximum, as OpenAI's


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    options: Options
    messages: tuple[Message, ...]
    rendering: Rendering
    tools: Toolbox | None  # None: nothing may be called


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    options: Options
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool
    add_special: bool  # the tokens with which the model's prompts begin are added to a text


def read_chat(
    body: Object, album: Album | None = None, unsaid: Recommended = UNSAID
) -> ChatRequest:
    """``album``: takes the images, where the model sees; ``unsaid``: how tokens are chosen where
    the client does not say.

    Raises InvalidRequest or one of its kinds.
    """
    fields = Fields(body)
    model = read_model(fields)
    messages = read_messages(fields, album)
    rendering, tools = read_rendering(fields), read_tools(fields)
    options = read_options(
        fields,
        model=model,
        logprobs=_chat_logprobs(fields),
        max_tokens=_chat_max_tokens(fields),
        unsaid=unsaid,
    )
    return ChatRequest(options=options, messages=messages, rendering=rendering, tools=tools)


def read_completion(body: Object, unsaid: Recommended = UNSAID) -> CompletionRequest:
    """Raises InvalidRequest or one of its kinds."""
    fields = Fields(body)
    model = read_model(fields)
    prompts = _prompts(fields)
    echo = fields.flag("echo")
    add_special = fields.flag("add_special_tokens", default=True)
    logprobs = fields.integer("logprobs", 0, MOST_ALTERNATIVES)
    # Without echo nothing at all would be asked for.
    max_tokens = fields.integer("max_tokens", 0 if echo else 1)
    options = read_options(
        fields,
        model=model,
        logprobs=logprobs,
        max_tokens=UNSAID_COMPLETION if max_tokens is None else max_tokens,
        chooses=True,
        unsaid=unsaid,
    )
    return CompletionRequest(options=options, prompts=prompts, echo=echo, add_special=add_special)


def _chat_max_tokens(fields: Fields) -> int | None:
    older = fields.integer("max_tokens", 1)
    newer = fields.integer("max_completion_tokens", 1)
    if older is not None and newer is not None and older != newer:
        raise InvalidRequest(
            f"max_tokens is {older} and max_completion_tokens is {newer}; give one of them.",
            param="max_tokens",
        )
    return older if newer is None else newer


def _chat_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MOST_ALTERNATIVES)
    if top is not None and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    return (top or 0) if wanted else None


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """A string, several, token ids, or several of those; the first element decides."""
    value = fields.take("prompt")
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return (checked_text(value, "prompt"),)
    if not isinstance(value, list):
        raise wrong_type(value, "a string, an array of strings or of token ids", "prompt")
    if not value:
        raise InvalidRequest("prompt must not be empty.", param="prompt")
    return checked_prompts(value, "prompt", most=MOST_PROMPTS, noun="prompts")
