"""What chat and completions share, checked field by field.

Whom a request is for (``safety_identifier``, else ``user``) and its ``metadata`` change nothing
about the answer: limits and usage go by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.protocol import Sampling
from gateway.errors import InvalidRequest
from gateway.inference.fields import (
    CONTROL,
    Fields,
    checked_text,
    missing,
    out_of_range,
    wrong_count,
    wrong_type,
)
from gateway.inference.recommended import Recommended
from gateway.inference.sampling import UNSAID, read_bad_words, read_sampling
from gateway.inference.structure import Structure, read_structure
from gateway.inference.support import refuse_unsupported
from gateway.inference.tier import TIERS, Tier

MOST_STOPS = 16
MOST_STOP_CHARS = 1024
MOST_STOP_TOKENS = 256
MOST_CHOICES = 128
MOST_PROMPT_ALTERNATIVES = 20
MOST_NAME_CHARS = 256  # of a customer
MOST_TAG_CHARS = 64  # of a tag's name; its value is held to what any name is
MOST_TAGS = 16


class Options(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    sampling: Sampling
    max_tokens: int | None
    n: int = 1
    candidates: int = 1  # choices generated per prompt, of which the likeliest n are the answer
    stop: tuple[str, ...] = ()
    shows_stop: bool = False  # the stop string, or a stop token's text, is part of the answer
    shows_special: bool = False  # control tokens are part of the text, by their names
    shows_ids: bool = False  # log-probabilities name tokens by number
    last_tokens: int | None = None  # of a prompt, which alone are kept; -1: as many as fit
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool
    logprobs: int | None  # alternatives per token; None: none wanted
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]  # names for x-ignored-params
    structure: Structure | None = None  # what every choice must match
    tier: Tier | None = None  # as asked for; None: the client named none
    customer: str = ""  # whom it is for, of the tenant's own customers
    tags: tuple[str, ...] = ()  # name=value
    shows_tokens: bool = False  # the tokens of prompt and answer are told, as numbers
    bad_words: tuple[str, ...] = ()  # that no answer completes
    prompt_logprobs: int | None = None  # alternatives per token of the prompt; None: none wanted


def read_options(
    fields: Fields,
    *,
    model: str,
    logprobs: int | None,
    max_tokens: int | None,
    chooses: bool = False,
    unsaid: Recommended = UNSAID,
) -> Options:
    """The last to read: what is still unread is ignored, and named.

    ``chooses``: whether the endpoint knows ``best_of``. Raises InvalidRequest.
    """
    stream = fields.flag("stream")
    asked = fields.has_any(_SELDOM)
    seldom = _seldom(fields, chooses=chooses, stream=stream) if asked else {}
    include_usage, ignored = _stream_options(fields, stream)
    sampling = read_sampling(fields, unsaid)
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise out_of_range(sampling.min_tokens, f"at most max_tokens, {max_tokens}", "min_tokens")
    return Options(
        model=model,
        sampling=sampling,
        max_tokens=max_tokens,
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=logprobs,
        stream=stream,
        include_usage=include_usage,
        structure=read_structure(fields),
        ignored=(*_left(fields), *ignored),
        **seldom,
    )


# Looked for one by one only where some of them is there.
_SELDOM = frozenset({
    "n", "best_of", "stop", "include_stop_str_in_output", "skip_special_tokens",
    "return_token_ids", "return_tokens_as_token_ids", "truncate_prompt_tokens", "stop_token_ids",
    "bad_words", "prompt_logprobs", "service_tier", "user", "safety_identifier", "metadata",
})  # fmt: skip


def _seldom(fields: Fields, *, chooses: bool, stream: bool) -> Mapping[str, Any]:
    n = fields.integer("n", 1, MOST_CHOICES) or 1
    return {
        "n": n,
        "candidates": _candidates(fields, n, stream) if chooses else n,
        "stop": _stop(fields),
        "shows_stop": fields.flag("include_stop_str_in_output"),
        "shows_special": not fields.flag("skip_special_tokens", default=True),
        "shows_tokens": fields.flag("return_token_ids"),
        "shows_ids": fields.flag("return_tokens_as_token_ids"),
        "last_tokens": read_last_tokens(fields),
        "stop_tokens": fields.token_ids("stop_token_ids", MOST_STOP_TOKENS),
        "bad_words": read_bad_words(fields),
        "prompt_logprobs": _prompt_logprobs(fields, stream),
        "tier": _tier(fields),
        "customer": _customer(fields),
        "tags": _tags(fields),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Whom a request is for, and how soon: of an endpoint that generates nothing."""

    tier: Tier | None
    customer: str
    tags: tuple[str, ...]
    ignored: tuple[str, ...]


def read_audience(fields: Fields) -> Audience:
    """The last to read, as ``read_options``."""
    return Audience(
        tier=_tier(fields),
        customer=_customer(fields),
        tags=_tags(fields),
        ignored=tuple(sorted(fields.unread)),
    )


def _left(fields: Fields) -> list[str]:
    """What nobody read, once nothing of it would change the answer."""
    refuse_unsupported(fields)
    return sorted(fields.unread)


def read_model(fields: Fields) -> str:
    model = fields.name("model")
    if not model:
        raise missing("model")
    return model


def _candidates(fields: Fields, n: int, stream: bool) -> int:
    candidates = fields.integer("best_of", 1, MOST_CHOICES) or n
    if candidates < n:
        raise out_of_range(candidates, f"at least n, {n}", "best_of")
    if candidates > n and stream:
        raise InvalidRequest(
            "A stream cannot show the best of several: best_of must equal n.", param="best_of"
        )
    return candidates


def _prompt_logprobs(fields: Fields, stream: bool) -> int | None:
    wanted = fields.integer("prompt_logprobs", 0, MOST_PROMPT_ALTERNATIVES)
    if wanted is not None and stream:
        raise InvalidRequest(
            "A stream does not show prompt_logprobs; leave stream out.", param="prompt_logprobs"
        )
    return wanted


def read_last_tokens(fields: Fields) -> int | None:
    count = fields.integer("truncate_prompt_tokens", -1)
    if count == 0:
        raise out_of_range(
            0, "at least 1, or -1 for what there is room for", "truncate_prompt_tokens"
        )
    return count


def _tier(fields: Fields) -> Tier | None:
    name = fields.name("service_tier")
    if name is not None and name not in TIERS:
        raise InvalidRequest(
            f"service_tier must be one of {', '.join(TIERS)}.", param="service_tier"
        )
    return None if name is None else TIERS[name]


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
        raise wrong_count(len(names), f"at most {MOST_TAGS}", "entries", "metadata")
    for name in names:
        if not 1 <= len(name) <= MOST_TAG_CHARS or CONTROL.search(name):
            raise InvalidRequest(
                f"metadata has the key {name[:80]!r}; keys are 1 to {MOST_TAG_CHARS} characters,"
                " none of which is a control character.",
                param="metadata",
            )
    return tuple(f"{name}={metadata.name(name) or ''}" for name in names)


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
        raise wrong_count(len(values), f"at most {MOST_STOPS}", "strings", "stop")
    stops = [checked_text(value, path.format(i)) for i, value in enumerate(values)]
    for i, stop in enumerate(stops):
        if len(stop) > MOST_STOP_CHARS:
            raise out_of_range(
                f"{len(stop)} characters long", f"at most {MOST_STOP_CHARS}", path.format(i)
            )
    return tuple(dict.fromkeys(stop for stop in stops if stop))
