"""Decode passes as CUDA graphs: one launch instead of some hundreds.

A pass in which every sequence computes one token and draws the next is the same list of kernels
whatever the tokens, pages and adapters are, so it is captured once per bucket of rows, with and
without adapters, and replayed. What changes from pass to pass lies in one device tensor that a
single copy fills:

    packed  [rows, COLUMNS + MAXP] int32: token, position, slot, context length, the segment that
            starts here (first row, rows, adapter row), one column unused, then the page table

Rows past the batch have slot -1, context length 0 and no segment, and compute nothing anybody
reads. The adapter table may be written while graphs exist, but a table that grows moves: graphs
with adapters are then captured again at their next use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.adapter_table import AdapterTable
from engine.batch import DecodeRows, HeadLayout, StepInputs
from engine.step import NO_ADAPTER, Chunk, StepPlan
from kernels.segments import Segments

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
COLUMNS = 8
TOKEN, POSITION, SLOT, CONTEXT, START, LENGTH, ADAPTER = range(7)
SEGMENT_TILE = 16  # rows; the smallest tile of the LoRA kernels

Forward = Callable[[StepInputs], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor  # [rows, V] float32
    sites: object  # the adapter table's sites at capture


class DecodeGraphs:
    """Belongs to the engine loop's thread; CUDA only."""

    def __init__(
        self,
        forward: Forward,
        table: AdapterTable,
        *,
        max_seqs: int,
        max_pages: int,
        page_tokens: int,
        device: torch.device,
    ) -> None:
        self._forward, self._table = forward, table
        self._page_tokens, self._device = page_tokens, device
        self._buckets = [b for b in BUCKETS if b < max_seqs] + [max_seqs]
        shape = (max_seqs, COLUMNS + max_pages)
        self._packed = torch.zeros(shape, dtype=torch.int32, device=device)
        self._staging = [torch.zeros(shape, dtype=torch.int32).pin_memory() for _ in range(2)]
        self._passes = 0
        self._rows = torch.arange(max_seqs, dtype=torch.int32, device=device)
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def capture(self) -> None:
        """Capture every bucket, the largest first so that the others share its memory."""
        self._packed[:, SLOT] = -1
        self._packed[:, ADAPTER] = NO_ADAPTER
        for rows in reversed(self._buckets):
            for adapted in (True, False):
                self._graphs[rows, adapted] = self._capture(rows, adapted)

    def run(self, plan: StepPlan) -> torch.Tensor | None:
        """Logits [B, V] float32 of a pure decode plan, valid until the next run; else None."""
        chunks = plan.chunks
        if len(chunks) > self._buckets[-1] or not all(map(_decodes, chunks)):
            return None
        rows = next(b for b in self._buckets if b >= len(chunks))
        adapted = any(chunk.adapter != NO_ADAPTER for chunk in chunks)
        self._fill(chunks, rows)
        found = self._graphs[rows, adapted]
        if adapted and found.sites is not self._table.sites:
            found = self._graphs[rows, adapted] = self._capture(rows, adapted)
        found.graph.replay()
        return found.logits[: len(chunks)]

    def _fill(self, chunks: Sequence[Chunk], rows: int) -> None:
        staging = self._staging[self._passes % 2]
        self._passes += 1
        pages = [chunk.start // self._page_tokens + 1 for chunk in chunks]
        width = COLUMNS + max(pages)
        table = staging.numpy()[:rows, :width]
        table[:, :COLUMNS] = (0, 0, -1, 0, 0, 0, NO_ADAPTER, 0)
        for row, (chunk, count) in enumerate(zip(chunks, pages, strict=True)):
            at, size = chunk.start, self._page_tokens
            slot = chunk.pages[at // size] * size + at % size
            table[row, : CONTEXT + 1] = (chunk.tokens[0], at, slot, at + 1)
            table[row, COLUMNS : COLUMNS + count] = chunk.pages[:count]
        runs = Segments.cut([chunk.adapter for chunk in chunks], tile=SEGMENT_TILE)
        table[: len(runs), START : ADAPTER + 1] = np.asarray(runs, dtype=np.int32)
        self._packed[:rows, :width].copy_(staging[:rows, :width], non_blocking=True)

    def _capture(self, rows: int, adapted: bool) -> _Graph:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._forward(self._inputs(rows, adapted))  # compiles what is not compiled yet
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            logits = self._forward(self._inputs(rows, adapted))
        return _Graph(graph, logits, self._table.sites)

    def _inputs(self, rows: int, adapted: bool) -> StepInputs:
        """The inputs of a pass, read from the packed tensor on the device."""
        columns = self._packed[:rows, :COLUMNS].t().contiguous()
        segments = Segments(
            start=columns[START],
            length=columns[LENGTH],
            adapter=columns[ADAPTER],
            longest=SEGMENT_TILE,
            runs=(),
        )
        wide = columns[: SLOT + 1].long()
        return StepInputs(
            tokens=wide[TOKEN],
            positions=wide[POSITION],
            slots=wide[SLOT],
            decode=DecodeRows(
                page_table=self._packed[:rows, COLUMNS:],
                context_lens=columns[CONTEXT],
                rows=self._rows[:rows],
            ),
            prefill=None,
            segments=segments if adapted else None,
            head_rows=self._rows[:rows].long(),
            heads=HeadLayout((), ()),
        )


def _decodes(chunk: Chunk) -> bool:
    return len(chunk.tokens) == 1 and chunk.draw is not None and chunk.prompt_logprobs is None
