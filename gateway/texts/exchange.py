"""What was asked and answered, on its way to where a project wants it kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """``repr`` shows nothing of it: it must not get into a log."""

    request: str
    organisation: str
    project: str
    customer: str
    base: str  # whose tokens they are
    prompts: Sequence[Sequence[int]]
    answers: Sequence[str]
    ended_at: datetime
    days: int  # that its project wants it kept

    def __repr__(self) -> str:
        return f"Exchange({self.request})"


class Texts(Protocol):
    def keep(self, exchange: Exchange) -> None:
        """Returns at once, and never fails: no answer waits for this."""
        ...
