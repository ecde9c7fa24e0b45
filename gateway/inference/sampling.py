"""How a client wants tokens chosen.

A ``top_p`` of 0 means greedy, and so does a temperature so small that logits divided by it would
overflow; ``seed`` is any 64-bit integer. ``top_k``, ``min_p``, ``repetition_penalty``,
``min_tokens``, ``allowed_token_ids`` and ``bad_words`` are vLLM's.
"""

from collections.abc import Sequence

from engine.protocol import Sampling
from gateway.errors import InvalidRequest
from gateway.inference.fields import (
    MOST_TOKEN_ID,
    Fields,
    checked_text,
    out_of_range,
    wrong_count,
)
from gateway.inference.recommended import REPETITION, Recommended, drawn
from gateway.inference.tokenizer import Tokenizer

MOST_BIASES = 1024
MOST_ALLOWED = 1 << 16
MOST_BAD_WORDS, MOST_WORD_CHARS = 256, 256
_FIELDS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "min_tokens", "allowed_token_ids",
})  # fmt: skip
UNSAID = Recommended()


def read_sampling(fields: Fields, unsaid: Recommended = UNSAID) -> Sampling:
    """``unsaid``: what holds where a client says nothing. Raises InvalidRequest."""
    if not fields.has_any(_FIELDS):
        return unsaid.sampling
    temperature, top_p = drawn(
        fields.number("temperature", 0, 2, default=unsaid.temperature),
        fields.number("top_p", 0, 1, default=unsaid.top_p),
    )
    top_k = fields.integer("top_k", -1, MOST_TOKEN_ID)
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=unsaid.top_k if top_k is None else max(top_k, 0),
        min_p=fields.number("min_p", 0, 1, default=unsaid.min_p),
        seed=fields.integer("seed"),
        presence_penalty=fields.number("presence_penalty", -2, 2, default=0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, default=0),
        repetition_penalty=fields.number(
            "repetition_penalty", *REPETITION, default=unsaid.repetition_penalty
        ),
        logit_bias=_logit_bias(fields),
        min_tokens=fields.integer("min_tokens", 0, MOST_TOKEN_ID) or 0,
        allowed=_allowed(fields),
    )


def read_bad_words(fields: Fields) -> tuple[str, ...]:
    """Raises InvalidRequest."""
    values = fields.items("bad_words", MOST_BAD_WORDS) or []
    words = [checked_text(value, f"bad_words[{i}]") for i, value in enumerate(values)]
    for i, word in enumerate(words):
        if not 1 <= len(word.strip()) <= MOST_WORD_CHARS:
            raise out_of_range(
                f"{len(word.strip())} characters long", f"between 1 and {MOST_WORD_CHARS}",
                f"bad_words[{i}]",
            )  # fmt: skip
    return tuple(dict.fromkeys(words))


def spelled(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each word, at the beginning of a text and after a space, as vLLM has it."""
    runs: list[list[int]] = []
    for word in words:
        plain, spaced = (
            tokenizer.encode(space + word.lstrip(), add_special=False) for space in ("", " ")
        )
        runs.append(plain)
        if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
            runs.append(spaced)
    return [run for run in runs if run]


def _allowed(fields: Fields) -> list[int]:
    name = "allowed_token_ids"
    if name not in fields.unread:
        return []
    tokens = fields.token_ids(name, MOST_ALLOWED)
    if not tokens:
        raise InvalidRequest(f"{name} must hold at least one token.", param=name)
    return list(dict.fromkeys(tokens))


def _logit_bias(fields: Fields) -> list[tuple[int, float]]:
    biases = fields.object("logit_bias")
    if biases is None:
        return []
    if len(biases.unread) > MOST_BIASES:
        raise wrong_count(len(biases.unread), f"at most {MOST_BIASES}", "entries", "logit_bias")
    pairs = []
    for name in sorted(biases.unread):
        if not (name.isascii() and name.isdigit() and name == str(int(name[:10]))):
            raise InvalidRequest(
                f"logit_bias has the key {name[:50]!r}; keys are token ids.", param="logit_bias"
            )
        pairs.append((int(name), biases.number(name, -100, 100, default=0)))
    return pairs
