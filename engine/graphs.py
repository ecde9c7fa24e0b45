"""Decode passes as CUDA graphs: one launch instead of some hundreds.

A pass in which every sequence computes one token and draws the next is the same list of kernels
whatever the tokens, pages and adapters are, so it is captured once per bucket of rows, with and
without adapters, and replayed; the draw is part of it. What changes from pass to pass lies in one
device tensor that a single copy fills (``decode_table``), and in the tokens of the pass before,
which it reads and replaces where they lie (``last_draws``).

Rows past the batch have slot -1, context length 0 and no segment, and compute nothing anybody
reads. The adapter table may be written while graphs exist, but a table that grows moves: graphs
with adapters are then captured again at their next use.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.adapter_table import AdapterTable
from engine.batch import DecodeRows, HeadLayout, StepInputs
from engine.capturing import PinnedStages, captured
from engine.decode_table import (
    ADAPTER,
    COLUMNS,
    CONTEXT,
    LENGTH,
    MIN_P,
    POSITION,
    QUERY,
    SEGMENT_TILE,
    SLOT,
    SOURCE,
    START,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    UNIFORM,
    UNUSED,
    DecodeTable,
)
from engine.last_draws import LastDraws
from engine.step import NO_ADAPTER, Chunk, StepPlan
from kernels.sample import sample
from kernels.segments import Segments

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)

Tell = Callable[[int, bool, npt.NDArray[np.int32]], None]  # rows of the bucket, adapted, table
Forward = Callable[[StepInputs, torch.Tensor], torch.Tensor]  # (inputs, out) to logits, in out


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a pass brought, valid until the next is launched. B sequences."""

    logits: torch.Tensor  # [B, V] float32
    tokens: torch.Tensor  # [B] int64, drawn; any token where the logits are not finite
    finite: torch.Tensor  # [B] bool


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    outcome: Replayed  # of all rows
    sites: object  # the adapter table's sites at capture


class DecodeGraphs:
    """Belongs to the engine loop's thread; CUDA only."""

    def __init__(
        self,
        forward: Forward,
        adapters: AdapterTable,
        last: LastDraws,
        *,
        max_seqs: int,
        max_pages: int,
        page_tokens: int,
        vocabulary: int,
        tell: Tell | None = None,
    ) -> None:
        """``tell`` is told of every pass before it is launched."""
        self._tell = tell
        self._forward, self._adapters, self._last = forward, adapters, last
        self._device = last.tokens.device
        self._buckets = [b for b in BUCKETS if b < max_seqs] + [max_seqs]
        self._table = DecodeTable(max_seqs, max_pages, page_tokens)
        self._packed = torch.from_numpy(self._table.packed).to(self._device)
        self._stages = PinnedStages(self._packed.shape)
        self._rows = torch.arange(max_seqs, dtype=torch.int32, device=self._device)
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._memory = torch.cuda.graph_pool_handle()
        # One for all graphs: each would keep its own while it exists.
        self._logits = torch.empty((max_seqs, vocabulary), device=self._device)

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    @property
    def nbytes(self) -> int:
        """What it takes before anything is captured."""
        return self._packed.nbytes + self._logits.nbytes

    def warm(self) -> None:
        """Run what a capture records."""
        for rows in self._buckets:
            for adapted in (True, False):
                self._pass(rows, adapted)

    def capture(self, first: int = 0, end: int | None = None) -> None:
        """Capture buckets, the largest first so that the others share its memory."""
        for rows in self._buckets[::-1][first:end]:
            for adapted in (True, False):
                self._graphs[rows, adapted] = self._capture(rows, adapted)

    def run(self, plan: StepPlan) -> Replayed | None:
        """Launch a pass of sequences that all decode; None for any other plan."""
        chunks = plan.chunks
        if len(chunks) > self._buckets[-1] or not all(map(_decodes, chunks)):
            return None
        count = len(chunks)
        rows = next(b for b in self._buckets if b >= count)
        adapted = any(chunk.adapter != NO_ADAPTER for chunk in chunks)
        width = self._table.fill(chunks, [self._last.row(c) for c in chunks], rows)
        table = self._table.packed[:rows, :width]
        if self._tell is not None:
            self._tell(rows, adapted, table)
        found = self.replay(rows, adapted, table)
        self._last.keep(chunks, None)
        return Replayed(found.logits[:count], found.tokens[:count], found.finite[:count])

    def replay(self, rows: int, adapted: bool, table: npt.NDArray[np.int32]) -> Replayed:
        """Launch a pass of a bucket of ``rows``, whose table is filled; the outcome of all rows."""
        found = self._graphs[rows, adapted]
        if adapted and found.sites is not self._adapters.sites:
            found = self._graphs[rows, adapted] = self._capture(rows, adapted)
        self._send(table)
        found.graph.replay()
        return found.outcome

    def _send(self, table: npt.NDArray[np.int32]) -> None:
        def fill(stage: torch.Tensor) -> int:
            stage.numpy()[: len(table), : table.shape[1]] = table
            return len(table)

        self._stages.send(fill, self._packed)

    def _capture(self, rows: int, adapted: bool) -> _Graph:
        """The pass is run once to try it: over blank rows, which write nothing that is read."""
        drawn = self._last.tokens.clone()
        self._packed[:rows, :COLUMNS] = torch.tensor(UNUSED, dtype=torch.int32)
        graph, outcome = captured(lambda: self._pass(rows, adapted), self._memory, self._device)
        self._last.tokens.copy_(drawn)
        return _Graph(graph, outcome, self._adapters.sites)

    def _pass(self, rows: int, adapted: bool) -> Replayed:
        columns = self._packed[:rows, :COLUMNS].t().contiguous()
        floats = columns.view(torch.float32)
        logits = self._forward(self._inputs(columns, rows, adapted), self._logits[:rows])
        tokens = sample(
            logits,
            floats[TEMPERATURE],
            columns[TOP_K],
            floats[TOP_P],
            floats[MIN_P],
            floats[UNIFORM],
        )
        self._last.tokens[:rows].copy_(tokens)
        return Replayed(logits, tokens, logits.sum(dim=-1).isfinite())

    def _inputs(self, columns: torch.Tensor, rows: int, adapted: bool) -> StepInputs:
        """The inputs of a pass, read from the packed tensor on the device."""
        segments = Segments(
            start=columns[START],
            length=columns[LENGTH],
            adapter=columns[ADAPTER],
            longest=SEGMENT_TILE,
            runs=(),
        )
        source, wide = columns[SOURCE].long(), columns[: SLOT + 1].long()
        drawn = self._last.tokens[source.clamp(min=0)]
        return StepInputs(
            tokens=torch.where(source >= 0, drawn, wide[TOKEN]),
            positions=wide[POSITION],
            slots=wide[SLOT],
            decode=DecodeRows(
                page_table=self._packed[:rows, COLUMNS:],
                context_lens=columns[CONTEXT],
                rows=self._rows[:rows],
                query_len=columns[QUERY],
            ),
            prefill=None,
            segments=segments if adapted else None,
            head_rows=self._rows[:rows].long(),
            heads=HeadLayout((), ()),
        )


def _decodes(chunk: Chunk) -> bool:
    return len(chunk.tokens) == 1 and chunk.draw is not None and not _reports(chunk)


def _reports(chunk: Chunk) -> bool:
    """Something of its rows besides a draw."""
    return chunk.prompt_logprobs is not None or chunk.pooling is not None
