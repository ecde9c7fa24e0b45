"""Who guesses what comes next.

A *draft* is a token that a proposer guesses to follow what a sequence knows. A pass that computes
the last known token with its drafts behind it *verifies* them: each row is drawn from as a plain
pass would, and drafts are kept as long as the draw before them is the draft. So a draft costs time
at most, never what the tokens are: a draw depends on seed and position alone.

A proposer that has a model of its own also watches passes (``watcher``). Torch-free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.step import NO_ADAPTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A sequence that may have drafts verified in the next pass.

    All it knows is read, and KV is computed for all of it but the last token.
    """

    sequence: int  # unique within a boot
    prompt: Sequence[int]  # views, read at once
    output: Sequence[int]
    most: int  # drafts that are of use
    pages: Sequence[int]  # room for positions before known + most, in order
    adapter: int = NO_ADAPTER  # row of the adapter table

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)

    def last(self, count: int) -> list[int]:
        """The last known tokens."""
        if count <= len(self.output):
            return list(self.output[len(self.output) - count :])
        return [*self.prompt[len(self.prompt) + len(self.output) - count :], *self.output]


class Proposer(Protocol):
    """Belongs to the engine loop's thread."""

    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        """Drafts by sequence, at most so many as asked for; none for those left out."""
        ...

    def forget(self, sequence: int) -> None:
        """It is over. Also called for sequences that were never asked about."""
        ...
