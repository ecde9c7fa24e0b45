"""Log-probabilities as OpenAI writes them: one shape for chat, another for completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import TokenLogprobs
from gateway.inference.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinity


def finite(logprob: float) -> float:
    """As JSON can say it, whatever the engine found."""
    return logprob if logprob > LOWEST else LOWEST


@dataclass(frozen=True, slots=True)
class TokenChance:
    """One token of the answer, and how likely it and its alternatives were."""

    token: int
    offset: int  # characters of the text before it
    chance: TokenLogprobs | None  # None: the first token of an echoed prompt has none


class Speller:
    """How tokens are named in log-probabilities."""

    __slots__ = ("_ids", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, ids: bool = False) -> None:
        """``ids``: by number, so that tokens that look alike can be told apart."""
        self._tokenizer = tokenizer
        self._ids = ids

    def name(self, token: int) -> str:
        return f"token_id:{token}" if self._ids else self._tokenizer.text_of(token)

    def spelled(self, token: int, logprob: float) -> dict[str, Any]:
        raw = list(self._tokenizer.spelling_of(token))
        return {"token": self.name(token), "logprob": finite(logprob), "bytes": raw}


def chat_logprobs(chances: Sequence[TokenChance], speller: Speller) -> dict[str, Any]:
    return {"content": [_chat_token(item, speller) for item in chances], "refusal": None}


def _chat_token(item: TokenChance, speller: Speller) -> dict[str, Any]:
    chance = item.chance or TokenLogprobs(logprob=LOWEST)
    return {
        **speller.spelled(item.token, chance.logprob),
        "top_logprobs": [speller.spelled(token, value) for token, value in chance.top],
    }


def prompt_logprobs(
    tokens: Sequence[int], known: Sequence[TokenLogprobs], speller: Speller, *, alternatives: int
) -> list[dict[str, Any] | None]:
    """As vLLM writes them, by number. A token that is not among the likeliest has no rank."""
    found: list[dict[str, Any] | None] = [None]
    for token, chance in zip(tokens[1:], known, strict=False):
        ranked = {
            number: {"logprob": finite(value), "rank": rank, "decoded_token": speller.name(number)}
            for rank, (number, value) in enumerate(chance.top[:alternatives], 1)
        }
        own = {
            "logprob": finite(chance.logprob),
            "rank": None,
            "decoded_token": speller.name(token),
        }
        facts = {token: ranked.get(token, own), **ranked}
        found.append({str(number): fact for number, fact in facts.items()})
    return found


def completion_logprobs(
    chances: Sequence[TokenChance], speller: Speller, *, alternatives: int
) -> dict[str, Any]:
    return {
        "tokens": [speller.name(item.token) for item in chances],
        "token_logprobs": [
            finite(item.chance.logprob) if item.chance else None for item in chances
        ],
        "top_logprobs": [_alternatives(item, speller) for item in chances]
        if alternatives
        else None,
        "text_offset": [item.offset for item in chances],
    }


def _alternatives(item: TokenChance, speller: Speller) -> dict[str, float] | None:
    """By name; of tokens named alike the likeliest stays. The chosen token is always there."""
    if item.chance is None:
        return None
    found: dict[str, float] = {}
    for token, value in (*item.chance.top, (item.token, item.chance.logprob)):
        found.setdefault(speller.name(token), finite(value))
    return found
