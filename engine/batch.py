"""StepPlan to StepInputs: the tensors of one forward pass.

Letters: T tokens of the pass, B sequences with one token (decode), S sequences with more
(prefill), MAXP pages of the longest, R rows whose logits are wanted.

Rows keep the plan's order, in which the chunks of one adapter are adjacent. Everything is put
together in numpy and copied to the device once per tensor, without waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.step import NO_ADAPTER, Chunk, StepPlan
from kernels.segments import Segments

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    page_table: torch.Tensor  # [B, MAXP] int32
    context_lens: torch.Tensor  # [B] int32, the new token included
    rows: torch.Tensor  # [B] int32, the row of each sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunks:
    page_table: torch.Tensor  # [S, MAXP] int32
    query_start: torch.Tensor  # [S] int32, first row
    query_len: torch.Tensor  # [S] int32, rows
    context_lens: torch.Tensor  # [S] int32, the new tokens included
    longest: int  # max of query_len


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    tokens: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64: page * page_tokens + offset
    decode: DecodeRows | None
    prefill: PrefillChunks | None
    segments: Segments | None  # None: every row is the base model's
    head_rows: torch.Tensor  # [R] int64, rows that go through the head
    heads: "HeadLayout"


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Which of the R rows belong to what."""

    draws: tuple[tuple[int, int], ...]  # (chunk, index among R) of every chunk that draws
    prompts: tuple[tuple[int, int, int], ...]  # (chunk, first, count) where logprobs are asked

    @classmethod
    def one_each(cls, chunks: int) -> "HeadLayout":
        """Every chunk draws from the row of its own number."""
        return cls(tuple((i, i) for i in range(chunks)), ())


class BatchBuilder:
    """Makes StepInputs for one device and page size."""

    def __init__(
        self, page_tokens: int, device: torch.device, *, segment_tile: int | None = None
    ) -> None:
        self._page_tokens, self._device, self._tile = page_tokens, device, segment_tile

    def build(self, plan: StepPlan) -> StepInputs:
        chunks = plan.chunks
        lengths = [len(chunk.tokens) for chunk in chunks]
        first_rows = [0]
        for length in lengths:
            first_rows.append(first_rows[-1] + length)
        positions, slots = self._positions(chunks)
        head_rows, heads = _head_rows(chunks, first_rows)
        tokens = np.concatenate([np.asarray(chunk.tokens, dtype=np.int64) for chunk in chunks])
        return StepInputs(
            tokens=self._put(tokens),
            positions=self._put(positions),
            slots=self._put(slots),
            decode=self._decode(chunks, first_rows),
            prefill=self._prefill(chunks, first_rows),
            segments=self._segments(chunks, lengths),
            head_rows=self._put(np.asarray(head_rows, dtype=np.int64)),
            heads=heads,
        )

    def _positions(self, chunks: Sequence[Chunk]) -> tuple[Ints, Ints]:
        positions, slots = [], []
        for chunk in chunks:
            at = np.arange(chunk.start, chunk.start + len(chunk.tokens), dtype=np.int64)
            first = chunk.start // self._page_tokens
            last = int(at[-1]) // self._page_tokens
            pages = np.asarray(chunk.pages[first : last + 1], dtype=np.int64)
            page = pages[at // self._page_tokens - first]
            positions.append(at)
            slots.append(page * self._page_tokens + at % self._page_tokens)
        return np.concatenate(positions), np.concatenate(slots)

    def _decode(self, chunks: Sequence[Chunk], first_rows: Sequence[int]) -> DecodeRows | None:
        which = [i for i, chunk in enumerate(chunks) if len(chunk.tokens) == 1]
        if not which:
            return None
        return DecodeRows(
            page_table=self._page_table([chunks[i] for i in which]),
            context_lens=self._int32([chunks[i].start + 1 for i in which]),
            rows=self._int32([first_rows[i] for i in which]),
        )

    def _prefill(self, chunks: Sequence[Chunk], first_rows: Sequence[int]) -> PrefillChunks | None:
        which = [i for i, chunk in enumerate(chunks) if len(chunk.tokens) > 1]
        if not which:
            return None
        lengths = [len(chunks[i].tokens) for i in which]
        ends = [chunks[i].start + length for i, length in zip(which, lengths, strict=True)]
        return PrefillChunks(
            page_table=self._page_table([chunks[i] for i in which]),
            query_start=self._int32([first_rows[i] for i in which]),
            query_len=self._int32(lengths),
            context_lens=self._int32(ends),
            longest=max(lengths),
        )

    def _page_table(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        used = [-(-(c.start + len(c.tokens)) // self._page_tokens) for c in chunks]
        table = np.zeros((len(chunks), max(used)), dtype=np.int32)
        for row, (chunk, count) in enumerate(zip(chunks, used, strict=True)):
            table[row, :count] = chunk.pages[:count]
        return self._put(table)

    def _segments(self, chunks: Sequence[Chunk], lengths: Sequence[int]) -> Segments | None:
        if all(chunk.adapter == NO_ADAPTER for chunk in chunks):
            return None
        adapters: list[int] = []
        for chunk, length in zip(chunks, lengths, strict=True):
            adapters += [chunk.adapter] * length
        return Segments.of_rows(adapters, self._device, tile=self._tile)

    def _int32(self, values: Sequence[int]) -> torch.Tensor:
        return self._put(np.asarray(values, dtype=np.int32))

    def _put(self, array: npt.NDArray[np.integer]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


def _head_rows(chunks: Sequence[Chunk], first_rows: Sequence[int]) -> tuple[list[int], HeadLayout]:
    """A chunk's last row predicts its draw; row i predicts token i + 1 for prompt logprobs."""
    rows: list[int] = []
    draws: list[tuple[int, int]] = []
    prompts: list[tuple[int, int, int]] = []
    for index, chunk in enumerate(chunks):
        first, end = first_rows[index], first_rows[index + 1]
        if chunk.draw is not None:
            draws.append((index, len(rows)))
            rows.append(end - 1)
    for index, chunk in enumerate(chunks):
        first, end = first_rows[index], first_rows[index + 1]
        if chunk.prompt_logprobs is not None and end - first > 1:
            prompts.append((index, len(rows), end - first - 1))
            rows += range(first, end - 1)
    return rows, HeadLayout(tuple(draws), tuple(prompts))
