"""What a client may ask, checked field by field.

Every documented field of OpenAI's API is in one of three classes: it works, it is ignored and
named in ``x-ignored-params``, or it is refused with 400 and its name. Unknown fields are ignored
and named too. Besides OpenAI's there are vLLM's ``top_k min_p repetition_penalty min_tokens
ignore_eos stop_token_ids``. Whom a request is for (``safety_identifier``, else ``user``) and its
``metadata`` change nothing about the answer: limits and usage go by them. A ``top_p`` of 0 means
greedy; ``seed`` is any 64-bit integer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import Sampling
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.inference.body import Object
from gateway.inference.fields import (
    Fields,
    checked_integer,
    checked_text,
    missing,
    out_of_range,
    wrong_type,
)
from gateway.inference.messages import Message, read_messages

MOST_STOPS = 16
MOST_STOP_CHARS = 1024
MOST_CHOICES = 128
MOST_ALTERNATIVES = 20
MOST_PROMPTS = 256
MOST_NAME_CHARS = 256  # of a customer, or a tag with its value
MOST_TAGS = 16
MOST_TOKEN_ID = (1 << 31) - 1

# Changes nothing about the answer here, so that it is safe to leave out.
IGNORED = frozenset({
    "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning_effort", "service_tier", "store", "verbosity",
})  # fmt: skip
# Would change the answer, so that leaving it out silently would be wrong.
REFUSED = (
    "tools", "functions", "tool_choice", "function_call", "response_format", "modalities", "audio",
    "web_search_options", "moderation", "suffix", "best_of", "use_beam_search",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "truncate_prompt_tokens", "prompt_logprobs",
)  # fmt: skip
# Values of refused fields that ask for what we do anyway.
HARMLESS: dict[str, Sequence[Any]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "suffix": ("",),
    "use_beam_search": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What chat and completions share."""

    model: str
    sampling: Sampling
    max_tokens: int | None
    n: int
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None  # alternatives per token; None: none wanted
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]  # names for x-ignored-params
    customer: str = ""  # whom it is for, of the tenant's own customers
    tags: tuple[str, ...] = ()  # name=value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    options: Options
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    options: Options
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool


def read_chat(body: Object) -> ChatRequest:
    """Raises InvalidRequest or one of its kinds."""
    fields = Fields(body)
    model = _model(fields)
    messages = read_messages(fields)
    logprobs = _chat_logprobs(fields)
    max_tokens = _chat_max_tokens(fields)
    options = _options(fields, model, logprobs, max_tokens)
    return ChatRequest(options=options, messages=messages)


def read_completion(body: Object) -> CompletionRequest:
    """Raises InvalidRequest or one of its kinds."""
    fields = Fields(body)
    model = _model(fields)
    prompts = _prompts(fields)
    echo = fields.flag("echo")
    logprobs = fields.integer("logprobs", 0, MOST_ALTERNATIVES)
    # Without echo nothing at all would be asked for.
    max_tokens = fields.integer("max_tokens", 0 if echo else 1)
    if body.get("best_of") == (body.get("n") or 1):
        fields.take("best_of")
    options = _options(fields, model, logprobs, 16 if max_tokens is None else max_tokens)
    return CompletionRequest(options=options, prompts=prompts, echo=echo)


def _options(fields: Fields, model: str, logprobs: int | None, max_tokens: int | None) -> Options:
    n = fields.integer("n", 1, MOST_CHOICES) or 1
    stream = fields.flag("stream")
    include_usage, ignored = _stream_options(fields, stream)
    sampling = _sampling(fields)
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise out_of_range(sampling.min_tokens, f"at most max_tokens, {max_tokens}", "min_tokens")
    stop, stop_tokens = _stop(fields), _token_ids(fields, "stop_token_ids", 256)
    ignore_eos = fields.flag("ignore_eos")
    customer = _customer(fields)
    tags = _tags(fields)
    _refuse_unsupported(fields)
    return Options(
        model=model,
        sampling=sampling,
        max_tokens=max_tokens,
        n=n,
        stop=stop,
        stop_tokens=stop_tokens,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        stream=stream,
        include_usage=include_usage,
        ignored=(*sorted(fields.unread), *ignored),
        customer=customer,
        tags=tags,
    )


def _customer(fields: Fields) -> str:
    """The newer field goes before the older."""
    older, newer = fields.name("user"), fields.name("safety_identifier")
    for name, value in (("user", older), ("safety_identifier", newer)):
        if value and len(value) > MOST_NAME_CHARS:
            raise out_of_range(f"{len(value)} characters long", f"at most {MOST_NAME_CHARS}", name)
    return newer or older or ""


def _tags(fields: Fields) -> tuple[str, ...]:
    metadata = fields.object("metadata")
    if metadata is None:
        return ()
    names = sorted(metadata.unread)
    if len(names) > MOST_TAGS:
        raise out_of_range(len(names), f"at most {MOST_TAGS} entries long", "metadata")
    tags = [f"{name}={metadata.name(name) or ''}" for name in names]
    for name, tag in zip(names, tags, strict=True):
        if len(tag) > MOST_NAME_CHARS:
            raise out_of_range(
                f"{len(tag)} characters long", f"at most {MOST_NAME_CHARS}", f"metadata.{name[:64]}"
            )
    return tuple(tags)


def _model(fields: Fields) -> str:
    model = fields.name("model")
    if not model:
        raise missing("model")
    return model


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", 0, 2, default=1)
    top_p = fields.number("top_p", 0, 1, default=1)
    if top_p == 0:
        temperature, top_p = 0.0, 1.0
    repetition = fields.number("repetition_penalty", 0, 10, default=1)
    if repetition == 0:
        raise out_of_range(0, "greater than 0", "repetition_penalty")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=max(fields.integer("top_k", -1, MOST_TOKEN_ID) or 0, 0),
        min_p=fields.number("min_p", 0, 1, default=0),
        seed=fields.integer("seed"),
        presence_penalty=fields.number("presence_penalty", -2, 2, default=0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, default=0),
        repetition_penalty=repetition,
        logit_bias=_logit_bias(fields),
        min_tokens=fields.integer("min_tokens", 0, MOST_TOKEN_ID) or 0,
    )


def _logit_bias(fields: Fields) -> list[tuple[int, float]]:
    biases = fields.object("logit_bias")
    if biases is None:
        return []
    if len(biases.unread) > 1024:
        raise out_of_range(len(biases.unread), "at most 1024 entries long", "logit_bias")
    pairs = []
    for name in sorted(biases.unread):
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidRequest(
                f"logit_bias has the key {name[:50]!r}; keys are token ids.", param="logit_bias"
            )
        pairs.append((int(name), biases.number(name, -100, 100, default=0)))
    return pairs


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


def _stream_options(fields: Fields, stream: bool) -> tuple[bool, list[str]]:
    options = fields.object("stream_options")
    if options is None:
        return False, []
    if not stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    return options.flag("include_usage"), [options.at(name) for name in sorted(options.unread)]


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return _stops([value], "stop") if value else ()
    if not isinstance(value, list):
        raise wrong_type(value, "a string or an array of strings", "stop")
    return _stops(value, "stop[{}]")


def _stops(values: list[Any], path: str) -> tuple[str, ...]:
    if len(values) > MOST_STOPS:
        raise out_of_range(len(values), f"at most {MOST_STOPS} strings", "stop")
    stops = [checked_text(value, path.format(i)) for i, value in enumerate(values)]
    for i, stop in enumerate(stops):
        if len(stop) > MOST_STOP_CHARS:
            raise out_of_range(
                f"{len(stop)} characters long", f"at most {MOST_STOP_CHARS}", path.format(i)
            )
    return tuple(dict.fromkeys(stop for stop in stops if stop))


def _token_ids(fields: Fields, name: str, most: int) -> tuple[int, ...]:
    values = fields.items(name, most) or []
    return tuple(
        checked_integer(value, 0, MOST_TOKEN_ID, f"{name}[{i}]") for i, value in enumerate(values)
    )


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
    if not isinstance(value[0], str | list):
        return (_tokens(value, "prompt"),)
    if len(value) > MOST_PROMPTS:
        raise out_of_range(len(value), f"at most {MOST_PROMPTS} prompts", "prompt")
    return tuple(
        _tokens(item, f"prompt[{i}]")
        if isinstance(item, list)
        else checked_text(item, f"prompt[{i}]")
        for i, item in enumerate(value)
    )


def _tokens(values: list[Any], path: str) -> tuple[int, ...]:
    if not values:
        raise InvalidRequest(f"{path} must hold at least one token.", param=path)
    return tuple(
        checked_integer(value, 0, MOST_TOKEN_ID, f"{path}[{i}]") for i, value in enumerate(values)
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name in REFUSED:
        if name in fields.unread and fields.take(name) not in HARMLESS.get(name, ()):
            raise UnsupportedParameter(f"{name} is not supported.", param=name)
