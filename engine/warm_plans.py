"""Passes of every kind that serving can ask for, as plans. Torch-free.

Kernels are chosen by how many rows a pass has, in steps, and compiled apart for row counts that
are one, a multiple of 16, or neither. Every page is page 0: the values mean nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from engine.config import EngineConfig
from engine.page_size import pages_of_tokens
from engine.protocol import Sampling
from engine.step import NO_ADAPTER, Chunk, Draw, Masks, StepPlan

DECODING = 3  # sequences that decode beside a prompt
ADAPTERS = (0, 1)  # rows of the table, taken in turn


class WarmPlans:
    """``longest``: tokens of the longest sequence."""

    def __init__(self, config: EngineConfig, longest: int) -> None:
        self._config, self._longest = config, longest

    def all(self) -> Iterator[StepPlan]:
        """With adapters and without: sums are read with an addend or without."""
        yield from self.mixed(0)
        yield from self.mixed(NO_ADAPTER)
        yield from self.shared()
        yield self._plan([1], 0)
        yield self._plan([1, 1], 0)
        yield self._plan([2], NO_ADAPTER)
        yield self._plan([1], 0, masked=True)
        yield self.largest()

    def mixed(self, adapter: int) -> Iterator[StepPlan]:
        """Prompts of every order of length, alone and beside sequences that decode."""
        most = self._config.max_num_batched_tokens
        sizes = [2**power for power in range(4, most.bit_length())]
        lengths = [2, 3, *(n for size in sizes for n in (size, size + 1, size * 3 // 2))]
        for length in [*(n for n in lengths if n < most), most]:
            for beside in (0, min(DECODING, length - 2, self._config.max_num_seqs - 1)):
                yield self._plan([length - beside, *[1] * beside], adapter)

    def shared(self) -> Iterator[StepPlan]:
        """Prompts of every length with different adapters, so many that they fill a pass."""
        most, sequences = self._config.max_num_batched_tokens, self._config.max_num_seqs
        sizes = [2**power for power in range(4, most.bit_length())]
        for total in (n for size in sizes for n in (size, size + 1) if n <= most):
            for each in (1, *sizes):
                count = min(total // each, sequences)
                if count > 1:
                    rest = total - each * (count - 1)
                    yield self._plan([each] * (count - 1) + [min(rest, each + 1)], None)

    def largest(self) -> StepPlan:
        """Full token budget over all sequences, each sampling, each row with an adapter."""
        tokens = self._config.max_num_batched_tokens
        sequences = min(self._config.max_num_seqs, tokens)
        each, extra = divmod(tokens, sequences)
        plan = self._plan([each + (i < extra) for i in range(sequences)], adapter=0)
        left, drafts, chunks = self._config.draft_rows, self._config.drafts, list[Chunk]()
        for chunk in plan.chunks:
            count = min(drafts, left, len(chunk.tokens) - 1)
            left -= count
            chunks.append(replace(chunk, drafts=[chunk.draw] * count if chunk.draw else []))
        return StepPlan(chunks)

    def _plan(
        self, lengths: Sequence[int], adapter: int | None, *, masked: bool = False
    ) -> StepPlan:
        """``adapter`` None: different ones for neighbours."""
        draw = Draw(
            sampling=Sampling(top_p=0.9, top_k=50), seed=0, position=0, prompt=(), output=(),
            masked=masked,
        )  # fmt: skip
        return StepPlan(
            [
                Chunk(
                    sequence=number,
                    tokens=[0] * min(length, self._longest),
                    start=0,
                    pages=[0] * pages_of_tokens(length, self._config.page_tokens),
                    adapter=ADAPTERS[number % 2] if adapter is None else adapter,
                    draw=draw,
                )
                for number, length in enumerate(lengths)
            ]
        )


def open_masks(plan: StepPlan, vocab_size: int) -> Masks | None:
    """Masks that bar nothing, where a plan is masked."""
    masked = [chunk.sequence for chunk in plan.chunks if chunk.draw and chunk.draw.masked]
    bits = np.full((1, -(-vocab_size // 32)), -1, dtype=np.int32)
    return Masks(dict.fromkeys(masked, 0), bits) if masked else None
