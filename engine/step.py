"""The three hand-offs of one forward pass: decide → compute → tokens.

The scheduler makes a ``StepPlan``, a ``Runner`` turns it into a ``StepResult``. Nothing here
imports torch, so the whole scheduling brain is tested without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.protocol import Image, Pooling, Sampling, TokenLogprobs

NO_ADAPTER = -1
DRAWN = -1  # in a chunk: the token its sequence draws in the pass launched before, not yet read


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Sample one token after the last token of a chunk."""

    sampling: Sampling
    seed: int  # always set: the engine fills in one when the request gave none
    position: int  # tokens generated before this one; (seed, position) fix the draw
    prompt: Sequence[int]  # known tokens for penalties; views, never copied, read at launch
    output: Sequence[int]  # lacks the last token when that is still being drawn
    barred: tuple[int, ...] = ()  # tokens that must not be drawn (min_tokens)
    logprobs: int | None = None  # how many alternatives to report; None: nothing
    masked: bool = False  # which tokens may come is said after the launch, by ``Pending.draw``


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a chunk whose tokens stand for an image, or for a part of it."""

    image: Image
    first: int  # row of the chunk
    skip: int  # of the image's rows, those before this chunk
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One sequence's share of a forward pass: consecutive tokens to compute."""

    sequence: int  # unique within a boot
    tokens: Sequence[int]  # the last may be DRAWN
    start: int  # position of tokens[0]: the tokens already computed
    pages: Sequence[int]  # page ids holding positions 0 .. start + len(tokens) - 1, in order
    adapter: int = NO_ADAPTER  # row of the adapter table
    active_from: int = 0  # positions before it are the base model's (aLoRA)
    draw: Draw | None = None  # None: the chunk ends before the last known token
    drafts: Sequence[Draw] = ()  # of its last tokens, which are guessed, what follows each
    prompt_logprobs: int | None = None  # report every token's log-probability but the first's
    pooling: Pooling | None = None  # report its part of the prompt's vector
    images: Sequence[Seen] = ()

    @property
    def draws(self) -> Sequence[Draw]:
        """Of its last rows, in order."""
        return () if self.draw is None else (self.draw, *self.drafts)

    @property
    def base_rows(self) -> int:
        """How many of its rows, from the first, are the base model's."""
        if self.adapter == NO_ADAPTER:
            return len(self.tokens)
        return min(max(self.active_from - self.start, 0), len(self.tokens))


@dataclass(frozen=True, slots=True)
class StepPlan:
    chunks: Sequence[Chunk]  # those of one adapter adjacent
    copies: Sequence[tuple[int, int]] = ()  # pages to copy before all else: (from, to)

    @property
    def tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one chunk brought. ``failed`` names a fault of this row alone (non-finite logits).

    Where drafts were verified, ``further`` has what was drawn after each that was kept.
    """

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    pooled: npt.NDArray[np.float64] | None = None  # [H], of several tokens their sum
    failed: str = ""
    further: Sequence["Drawn"] = ()


def verified(chunk: Chunk, rows: Sequence[Drawn]) -> Drawn:
    """What a chunk brought, of what its last rows drew: a draft is kept while the draw in its place
    is the draft. A row that failed is the last."""
    kept = 0
    while kept < len(chunk.drafts):
        draft = chunk.tokens[len(chunk.tokens) - len(chunk.drafts) + kept]
        if rows[kept].failed or rows[kept].token != draft:
            break
        kept += 1
    return replace(rows[0], further=tuple(rows[1 : kept + 1])) if kept else rows[0]


@dataclass(frozen=True, slots=True)
class StepResult:
    drawn: Sequence[Drawn]  # one per chunk of the plan, in order


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens may come next, for sequences that a grammar holds to something."""

    rows: Mapping[int, int]  # sequence -> its row of bits, drafts' follow; others draw any token
    bits: npt.NDArray[np.int32]  # [rows, words]: token v is bit v % 32 of word v // 32


class Pending(Protocol):
    """A forward pass under way."""

    def draw(self, masks: Masks) -> None:
        """Where a draw is masked: let the pass draw. Once, before the next launch."""
        ...

    def wait(self) -> StepResult: ...


class Runner(Protocol):
    """Computes plans in the order they are launched. Belongs to the engine loop's thread.

    A plan may be launched before the one before it was waited for; its DRAWN tokens are that
    one's. Whatever is done to pages and adapters after a launch takes effect after that pass, so
    a page or a row of the adapter table can be given away while a pass that uses it is under way.
    """

    def launch(self, plan: StepPlan) -> Pending: ...
