"""What the engine's loop knows of grammars: a matcher per sequence, and the masks it implies.

A *grammar* says what an answer must match, a *matcher* how far one sequence has come in it, and a
*mask* which tokens may come next. A matcher is moved on by every token its sequence keeps and is
never moved back: preemption forgets what is computed, not what is known.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, Self

from engine.step import Masks


class Matcher(Protocol):
    """Belongs to the loop's thread, but for the time that its mask is being made."""

    @property
    def complete(self) -> bool:
        """Nothing may follow."""
        ...

    @property
    def fault(self) -> str:
        """Why it can be followed no further; empty while it can."""
        ...

    def take(self, token: int) -> None: ...

    def fitting(self, tokens: Sequence[int]) -> int:
        """How many of these, the first ones, may come next."""
        ...

    def fork(self) -> Self:
        """Another one at the same place."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A sequence whose next token is to be masked, and those after its drafts."""

    sequence: int
    matcher: Matcher
    barred: Sequence[tuple[int, ...]]  # in each place may not come either, unless nothing else can
    drafts: Sequence[int] = ()  # the matcher takes all of them; one fewer than places


class Grammars(Protocol):
    """Works in threads of its own."""

    def compile(self, grammar: str) -> Future[Matcher]:
        """At the grammar's beginning. Raises GrammarInvalid."""
        ...

    def masks(self, turns: Sequence[Turn]) -> Future[Masks]:
        """A matcher that fails meanwhile says so by its ``fault``."""
        ...
