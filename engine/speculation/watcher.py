"""What a proposer with a model of its own sees of the base's passes.

Its keys and values lie beside the base's: page p of a sequence holds them for the same positions,
in memory of the proposer's own with as many pages. So nobody allocates for it, a prefix that is
found computed is so for both, and what is written for drafts that were not kept is written over.
Only the quality of drafts depends on it: a page that came back from host memory, or was computed
while speculation rested, may hold anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.speculation.proposer import Proposer
from engine.step import Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A pass whose forward part is launched; drafts it verifies are among its tokens."""

    chunks: Sequence[Chunk]  # computed together; tokens may be DRAWN where nobody speculates
    first_rows: Sequence[int]  # of each chunk, among the rows of features
    features: torch.Tensor | None  # [rows, len(layers) * H], valid until the next pass
    copies: Sequence[tuple[int, int]] = ()  # whole pages copied before it: (from, to)


class Watcher(Proposer, Protocol):
    """Belongs to the engine loop's thread. Launches on the stream passes are launched on."""

    @property
    def layers(self) -> Sequence[int]:
        """Of which layers of the base it reads the residual stream as it comes in: the features.

        EAGLE-3 reads three.
        """
        ...

    @property
    def page_bytes(self) -> int:
        """What it takes beside each page."""
        ...

    def allocate(self, num_pages: int) -> None:
        """Once, before the first pass."""
        ...

    def watch(self, seen: Seen) -> None:
        """A pass was launched. What it reads of features it has read, or copied, in the stream."""
        ...
