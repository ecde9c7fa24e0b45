"""What one forward pass computes: a chunk of each sequence in it, and what planning found out."""

from collections.abc import Sequence as View
from dataclasses import dataclass, field

from engine.request import Request
from engine.sequence import Sequence
from engine.step import NO_ADAPTER, Chunk, StepPlan


@dataclass(frozen=True, slots=True)
class Planned:
    sequence: Sequence
    stop: int  # the position the chunk ends before
    life: int  # of the sequence when this was planned
    placing: int  # likewise
    chunk: Chunk

    @property
    def drafts(self) -> View[int]:
        return self.chunk.tokens[len(self.chunk.tokens) - len(self.chunk.drafts) :]

    @property
    def draws(self) -> int:
        """Tokens it draws at most."""
        return len(self.chunk.draws)


@dataclass(slots=True)
class Plan:
    """One pass, and what was found out while planning it."""

    planned: list[Planned] = field(default_factory=list)
    misfits: list[Request] = field(default_factory=list)  # with their adapter, larger than the pool
    copies: list[tuple[int, int]] = field(default_factory=list)
    decodes: int = 0
    drafts: int = 0
    began: float = 0.0  # when it was planned, seconds
    budget: int = 0  # tokens of prompts that may still be planned
    withheld: int = 0  # of them, those that only modest tenants may have
    reserved: int = 0  # likewise, once a modest tenant's prompt is in it
    extra: int = 0  # beyond the budget, for prompts of modest tenants that end in this pass by it

    @property
    def step(self) -> StepPlan:
        return StepPlan([item.chunk for item in self.planned], self.copies)

    @property
    def prompt_tokens(self) -> int:
        return self.step.tokens - self.decodes - self.drafts


def chunk_of(
    sequence: Sequence, start: int, stop: int, *, drafts: View[int], pages: int, draws: bool
) -> Chunk:
    """Tokens from ``start`` on and before ``stop``, with drafts behind them, over the sequence's
    first so many pages."""
    request = sequence.request
    tokens = sequence.tokens(start, stop)
    return Chunk(
        sequence=sequence.number,
        tokens=[*tokens, *drafts] if drafts else tokens,
        start=start,
        pages=sequence.pages[:pages],
        adapter=sequence.row if request.computed_with(stop) else NO_ADAPTER,
        active_from=request.active_from,
        draw=sequence.draw() if draws else None,
        drafts=[sequence.draw(drafts[: i + 1]) for i in range(len(drafts))],
        prompt_logprobs=request.submit.prompt_logprobs if sequence.wants_prompt_logprobs else None,
        pooling=sequence.pools(draws=draws),
        images=sequence.seen(start, stop),
    )
