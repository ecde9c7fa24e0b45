"""Log-probabilities as OpenAI writes them: one shape for chat, another for completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import TokenLogprobs
from gateway.inference.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinity


@dataclass(frozen=True, slots=True)
class TokenChance:
    """One token of the answer, and how likely it and its alternatives were."""

    token: int
    offset: int  # characters of the text before it
    chance: TokenLogprobs | None  # None: the first token of an echoed prompt has none


def chat_logprobs(chances: Sequence[TokenChance], tokenizer: Tokenizer) -> dict[str, Any]:
    return {"content": [_chat_token(item, tokenizer) for item in chances], "refusal": None}


def _chat_token(item: TokenChance, tokenizer: Tokenizer) -> dict[str, Any]:
    chance = item.chance or TokenLogprobs(logprob=LOWEST)
    return {
        **_spelled(item.token, chance.logprob, tokenizer),
        "top_logprobs": [_spelled(token, value, tokenizer) for token, value in chance.top],
    }


def _spelled(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    text, raw = tokenizer.text_of(token), tokenizer.bytes_of(token)
    return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(raw or text.encode())}


def completion_logprobs(
    chances: Sequence[TokenChance], tokenizer: Tokenizer, *, alternatives: int
) -> dict[str, Any]:
    return {
        "tokens": [tokenizer.text_of(item.token) for item in chances],
        "token_logprobs": [
            max(item.chance.logprob, LOWEST) if item.chance else None for item in chances
        ],
        "top_logprobs": [_alternatives(item, tokenizer) for item in chances]
        if alternatives
        else None,
        "text_offset": [item.offset for item in chances],
    }


def _alternatives(item: TokenChance, tokenizer: Tokenizer) -> dict[str, float] | None:
    """By text; of tokens that show alike the likeliest stays. The chosen token is always there."""
    if item.chance is None:
        return None
    found: dict[str, float] = {}
    for token, value in (*item.chance.top, (item.token, item.chance.logprob)):
        found.setdefault(tokenizer.text_of(token), max(value, LOWEST))
    return found
