"""Decode passes as CUDA graphs: one launch instead of some hundreds.

A pass in which every sequence computes one token and draws the next is the same list of kernels
whatever the tokens, pages and adapters are, so it is captured once per bucket of rows, with and
without adapters, and replayed; the draw is part of it. What changes from pass to pass lies in one
device tensor that a single copy fills (``decode_table``), and in the tokens of the pass before,
which it reads and replaces where they lie (``last_draws``).

Passes that verify drafts are captured likewise (``queries``): of every sequence so many rows as its
tokens may be. What is drawn in them is kept or not by whoever reads it, so the next pass's inputs
are not among them.

Rows past the batch have slot -1, context length 0 and no segment, and compute nothing anybody
reads. The adapter table may be written while graphs exist, but a table that grows moves: graphs
with adapters are then captured again at their next use.
"""

from collections.abc import Callable, Sequence
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
from engine.speculation.verify_table import VerifyTable
from engine.step import NO_ADAPTER, Chunk, StepPlan
from kernels.sample import sample
from kernels.segments import Segments

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)

Tell = Callable[[int, bool, npt.NDArray[np.int32]], None]  # rows of the bucket, adapted, table
Forward = Callable[[StepInputs, torch.Tensor], torch.Tensor]  # (inputs, out) to logits, in out


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a pass brought, valid until the next is launched. R rows: one of each sequence, or as
    many as it has queries at most."""

    logits: torch.Tensor  # [R, V] float32
    tokens: torch.Tensor  # [R] int64, drawn; any token where the logits are not finite
    finite: torch.Tensor  # [R] bool


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
        queries: int = 1,
        tell: Tell | None = None,
        buckets: Sequence[int] | None = None,
    ) -> None:
        """``queries``: tokens of a sequence, its drafts included. ``tell`` is told of every pass
        before it is launched. ``buckets``: in the place of the usual."""
        self._queries, self._tell = queries, tell
        self._forward, self._adapters, self._last = forward, adapters, last
        self._device = last.tokens.device
        self._buckets = list(buckets or [*(b for b in BUCKETS if b < max_seqs), max_seqs])
        self._table = (
            DecodeTable(max_seqs, max_pages, page_tokens)
            if queries == 1
            else VerifyTable(max_seqs, max_pages, page_tokens, queries=queries)
        )
        self._packed = torch.from_numpy(self._table.packed).to(self._device)
        self._stages = PinnedStages(self._packed.shape)
        self._rows = torch.arange(max_seqs * queries, dtype=torch.int32, device=self._device)
        self._first = self._rows[::queries].contiguous()
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._memory = torch.cuda.graph_pool_handle()
        # One for all graphs: each would keep its own while it exists.
        self._logits = torch.empty((max_seqs * queries, vocabulary), device=self._device)

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

    def capture(
        self,
        first: int = 0,
        end: int | None = None,
        *,
        tried: bool = False,
        kinds: Sequence[bool] = (True, False),
    ) -> None:
        """Capture buckets, the largest first so that the others share its memory. ``tried``: see
        ``captured``. ``kinds``: with adapters, without; what was left out is captured at its first
        use."""
        for rows in self._buckets[::-1][first:end]:
            for adapted in kinds:
                self._graphs[rows, adapted] = self._capture(rows, adapted, tried=tried)

    def run(self, plan: StepPlan) -> Replayed | None:
        """Launch a pass of sequences that all decode, with at most so many drafts as there is room
        for; None for any other plan."""
        chunks, queries = plan.chunks, self._queries
        if len(chunks) > self._buckets[-1] or not all(_decodes(c, queries) for c in chunks):
            return None
        count = len(chunks)
        rows = next(b for b in self._buckets if b >= count)
        adapted = any(chunk.adapter != NO_ADAPTER for chunk in chunks)
        width, used = self._fill(chunks, rows), count * queries
        table = self._table.packed[: rows * queries, :width]
        if self._tell is not None:
            self._tell(rows, adapted, table)
        found = self.replay(rows, adapted, table)
        self._last.keep(chunks, None)
        return Replayed(found.logits[:used], found.tokens[:used], found.finite[:used])

    def replay(self, rows: int, adapted: bool, table: npt.NDArray[np.int32]) -> Replayed:
        """Launch a pass of a bucket of ``rows``, whose table is filled; the outcome of all rows."""
        found = self._graphs.get((rows, adapted))
        if found is None or (adapted and found.sites is not self._adapters.sites):
            found = self._graphs[rows, adapted] = self._capture(rows, adapted)
        self._send(table)
        found.graph.replay()
        return found.outcome

    def _fill(self, chunks: Sequence[Chunk], rows: int) -> int:
        """Returns the columns in use."""
        if isinstance(self._table, VerifyTable):
            return self._table.fill(chunks, rows * self._queries)
        return self._table.fill(chunks, [self._last.row(chunk) for chunk in chunks], rows)

    def _send(self, table: npt.NDArray[np.int32]) -> None:
        def fill(stage: torch.Tensor) -> int:
            stage.numpy()[: len(table), : table.shape[1]] = table
            return len(table)

        self._stages.send(fill, self._packed)

    def _capture(self, rows: int, adapted: bool, *, tried: bool = False) -> _Graph:
        """Where the pass is run to try it, over blank rows, which write nothing that is read."""
        drawn = self._last.tokens.clone()
        self._packed[: rows * self._queries, :COLUMNS] = torch.tensor(UNUSED, dtype=torch.int32)
        graph, outcome = captured(
            lambda: self._pass(rows, adapted), self._memory, self._device, tried=tried
        )
        self._last.tokens.copy_(drawn)
        return _Graph(graph, outcome, self._adapters.sites)

    def _pass(self, rows: int, adapted: bool) -> Replayed:
        used = rows * self._queries
        columns = self._packed[:used, :COLUMNS].t().contiguous()
        floats = columns.view(torch.float32)
        layout = TableLayout(self._packed, self._rows, self._first, rows, self._queries)
        inputs = table_inputs(layout, columns, self._last.tokens, adapted=adapted)
        logits = self._forward(inputs, self._logits[:used])
        tokens = sample(
            logits,
            floats[TEMPERATURE],
            columns[TOP_K],
            floats[TOP_P],
            floats[MIN_P],
            floats[UNIFORM],
        )
        if self._queries == 1:
            self._last.tokens[:rows].copy_(tokens)
        return Replayed(logits, tokens, logits.sum(dim=-1).isfinite())


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where the inputs of a pass of so many sequences lie."""

    packed: torch.Tensor  # [R or more, COLUMNS + MAXP] int32
    rows: torch.Tensor  # [R or more] int32, ascending
    first: torch.Tensor  # [sequences or more] int32, of each the first row
    sequences: int
    queries: int  # rows of each


def table_inputs(
    layout: TableLayout, columns: torch.Tensor, drawn: torch.Tensor, *, adapted: bool
) -> StepInputs:
    """The inputs of a pass, read from the packed tensor on the device.

    ``columns`` [COLUMNS, R], of the packed tensor. ``drawn``: see ``LastDraws``.
    """
    count, queries = layout.sequences, layout.queries
    used = count * queries
    runs = min(used, count + -(-used // SEGMENT_TILE))  # one of each sequence, cut to tiles
    segments = Segments(
        start=columns[START][:runs],
        length=columns[LENGTH][:runs],
        adapter=columns[ADAPTER][:runs],
        longest=SEGMENT_TILE,
        runs=(),
    )
    source, wide = columns[SOURCE].long(), columns[: SLOT + 1].long()
    last = drawn[source.clamp(min=0)] if queries == 1 else wide[TOKEN]
    return StepInputs(
        tokens=torch.where(source >= 0, last, wide[TOKEN]),
        positions=wide[POSITION],
        slots=wide[SLOT],
        decode=DecodeRows(
            page_table=layout.packed[:count, COLUMNS:],
            context_lens=columns[CONTEXT][:count],
            rows=layout.first[:count],
            query_len=columns[QUERY][:count],
            queries=queries,
        ),
        prefill=None,
        segments=segments if adapted else None,
        head_rows=layout.rows[:used].long(),
        heads=HeadLayout((), ()),
    )


def _decodes(chunk: Chunk, queries: int) -> bool:
    length = len(chunk.tokens)
    plain = length - len(chunk.drafts) == 1 and length <= queries
    return plain and chunk.draw is not None and not _reports(chunk)


def _reports(chunk: Chunk) -> bool:
    """Something of its rows besides a draw."""
    return chunk.prompt_logprobs is not None or chunk.pooling is not None
