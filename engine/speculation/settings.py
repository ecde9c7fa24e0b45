"""``--speculative-config``: a JSON object with vLLM's keys.

method                 "ngram", "draft_model" or "eagle3"
model                  directory of the checkpoint that drafts; for ngram none
num_speculative_tokens drafts a sequence has verified in one pass, at most
prompt_lookup_max      for ngram: tokens at the end that are looked for, at most
prompt_lookup_min      likewise, at least
"""

import json
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import ConfigError

FLAG = "--speculative-config"
MOST = 16  # drafts
LONGEST = 64  # tokens that are looked for
LOOKED_FOR = 5  # where neither end is given
KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


class Method(StrEnum):
    NGRAM = "ngram"  # what followed when the last tokens came before
    DRAFT_MODEL = "draft_model"  # a smaller model with the same vocabulary
    EAGLE3 = "eagle3"  # a head that reads the base's hidden states

    @property
    def has_model(self) -> bool:
        return self is not Method.NGRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    method: Method
    tokens: int  # drafts a sequence has verified in one pass, at most
    model: str | None = None  # directory; None: ngram
    lookup_max: int = LOOKED_FOR
    lookup_min: int = LOOKED_FOR

    @classmethod
    def parse(cls, text: str) -> "SpeculationSettings":
        """Raises ConfigError, which names the key at fault."""
        found = _object(text)
        unknown = [key for key in found if key not in KEYS]
        if unknown:
            raise ConfigError(f"{FLAG}: {unknown[0]} is not known; it has {', '.join(KEYS)}")
        method = _method(found.get("method"))
        longest, shortest = _lookup(found, method)
        if "num_speculative_tokens" not in found:
            raise ConfigError(f"{FLAG}: num_speculative_tokens is missing")
        return cls(
            method=method,
            tokens=_whole(found, "num_speculative_tokens", MOST),
            model=_model(found.get("model"), method),
            lookup_max=longest,
            lookup_min=shortest,
        )


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f'{FLAG} must be a JSON object, as {{"method": "ngram", ..}}')
    return {key: value for key, value in found.items() if value is not None}


def _method(value: object) -> Method:
    methods = ", ".join(Method)
    if value is None:
        raise ConfigError(f"{FLAG}: method is missing: one of {methods}")
    if not isinstance(value, str) or value not in list(Method):
        raise ConfigError(f"{FLAG}: method {value!r} is not known: one of {methods}")
    return Method(value)


def _model(value: object, method: Method) -> str | None:
    if not method.has_model:
        if value not in (None, method.value):  # vLLM takes the method's name here as well
            raise ConfigError(f"{FLAG}: model: {method} needs none")
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{FLAG}: model must name the checkpoint that drafts, for {method}")
    return value


def _lookup(found: dict[str, object], method: Method) -> tuple[int, int]:
    """The longest and the shortest run that is looked for; each is the other's default."""
    given = [key for key in ("prompt_lookup_max", "prompt_lookup_min") if key in found]
    if not given:
        return LOOKED_FOR, LOOKED_FOR
    if method is not Method.NGRAM:
        raise ConfigError(f"{FLAG}: {given[0]} is for ngram, not for {method}")
    longest = _whole(found, "prompt_lookup_max" if "prompt_lookup_max" in found else given[0])
    shortest = _whole(found, "prompt_lookup_min" if "prompt_lookup_min" in found else given[0])
    if shortest > longest:
        raise ConfigError(
            f"{FLAG}: prompt_lookup_min {shortest} must be at most prompt_lookup_max {longest}"
        )
    return longest, shortest


def _whole(found: dict[str, object], key: str, most: int = LONGEST) -> int:
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{FLAG}: {key} {value!r} must be a whole number from 1 to {most}")
    return value
