"""What is told of a request to ``/v1/responses`` beside its answer, and what is kept of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

Item = Mapping[str, Any]  # of a conversation, as OpenAI writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Responding:
    settings: Mapping[str, Any]  # fields of the request that the response repeats
    items: Sequence[Item]  # the request's own input
    before: Sequence[Item]  # the conversation it goes on with
    previous: str | None
    store: bool
    kept_for: timedelta
