"""StepPlan to StepInputs: the tensors of one forward pass.

Letters: T tokens of the pass, B sequences with one token (decode), S sequences with more
(prefill), MAXP pages of the longest, R rows whose logits are wanted.

Rows keep the plan's order, in which the chunks of one adapter are adjacent. Everything is put
together in numpy and copied to the device at once, without waiting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch

from engine.last_draws import LastDraws
from engine.placement import round_up
from engine.protocol import Pooling
from engine.staging import Array, send
from engine.step import DRAWN, NO_ADAPTER, Chunk, StepPlan
from kernels.places import Places
from kernels.segments import Segments

Ints = npt.NDArray[np.int64]
Runs = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    page_table: torch.Tensor  # [B, MAXP] int32
    context_lens: torch.Tensor  # [B] int32, the new token included
    rows: torch.Tensor  # [B] int32, the first row of each sequence
    query_len: torch.Tensor  # [B] int32, its rows; 0 of one that is not used
    queries: int = 1  # rows of a sequence at most

    def as_chunks(self) -> "PrefillChunks":
        return PrefillChunks(
            page_table=self.page_table,
            query_start=self.rows,
            query_len=self.query_len,
            context_lens=self.context_lens,
            longest=self.queries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunks:
    page_table: torch.Tensor  # [S, MAXP] int32
    query_start: torch.Tensor  # [S] int32, first row
    query_len: torch.Tensor  # [S] int32, rows
    context_lens: torch.Tensor  # [S] int32, the new tokens included
    longest: int  # max of query_len


@dataclass(frozen=True, slots=True)
class ImageRows:
    first: int  # row of the pass
    vectors: torch.Tensor  # [n, H], in the place of what the embedding has for these tokens


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
    places: Places | None = None  # on a CPU, where its tokens lie in the pages of every layer
    images: Sequence[ImageRows] = ()
    changed: bool = False  # the lead of a team changes embeddings, for images or for adapters


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Which of the R rows belong to what."""

    draws: tuple[tuple[int, int], ...]  # (chunk, index among R) of every draw, a chunk's adjacent
    prompts: tuple[tuple[int, int, int], ...]  # (chunk, first, count) where logprobs are asked
    pools: tuple[tuple[int, int, int], ...] = ()  # likewise, of rows to be added up

    @classmethod
    def one_each(cls, chunks: int) -> "HeadLayout":
        """Every chunk draws from the row of its own number."""
        return cls(tuple((i, i) for i in range(chunks)), ())

    @classmethod
    def several_each(cls, draws: Sequence[int], rows: int) -> "HeadLayout":
        """Every chunk has so many rows, and draws from the first of them."""
        places = ((i, i * rows + j) for i, count in enumerate(draws) for j in range(count))
        return cls(tuple(places), ())


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A plan on the host: arrays by name, segments, and whose the rows of the head are."""

    arrays: Mapping[str, Array]
    runs: Runs
    heads: HeadLayout
    longest: int  # tokens of a chunk


class BatchBuilder:
    """Makes StepInputs for one device and page size."""

    def __init__(
        self, page_tokens: int, device: torch.device, *, tiles: Sequence[int] = ()
    ) -> None:
        """``tiles``: rows, ascending. Segments are cut to the first that holds the longest run of
        an adapter, or to the last; whole without any."""
        self._page_tokens, self._device, self._tiles = page_tokens, device, tiles
        # Kernels are compiled apart for page tables whose width is 1, a multiple of 16, or neither.
        self._width = 16 if device.type == "cuda" else 1

    def build(self, plan: StepPlan, last: LastDraws | None = None) -> StepInputs:
        """``last`` has the tokens that the plan's chunks lack."""
        return self.inputs(self.host(plan, last), last)

    def host(self, plan: StepPlan, last: LastDraws | None = None) -> HostBatch:
        chunks = plan.chunks
        lengths = [len(chunk.tokens) for chunk in chunks]
        first_rows = [0, *accumulate(lengths)]
        head_rows, heads = _head_rows(chunks, first_rows)
        runs = self._runs(chunks, lengths)
        arrays = self._arrays(chunks, lengths)
        arrays["head_rows"] = np.asarray(head_rows, dtype=np.int64)
        arrays["runs"] = np.asarray(runs, dtype=np.int32).reshape(-1, 3).T.copy()
        unread = [i for i, chunk in enumerate(chunks) if chunk.tokens[-1] == DRAWN]
        if unread:
            arrays["unread"] = np.asarray([first_rows[i + 1] - 1 for i in unread])
            arrays["source"] = _sources([chunks[i] for i in unread], last)
        return HostBatch(arrays, runs, heads, max(lengths))

    def inputs(self, host: HostBatch, last: LastDraws | None) -> StepInputs:
        there = send(host.arrays, self._device)
        if "unread" in there and last is not None:
            there["tokens"][there["unread"]] = last.tokens[there["source"]]
        return StepInputs(
            tokens=there["tokens"],
            positions=there["positions"],
            slots=there["slots"],
            decode=_decode(there),
            prefill=_prefill(there, host.longest),
            segments=self._segments(there["runs"], host.runs),
            head_rows=there["head_rows"],
            heads=host.heads,
        )

    def _arrays(self, chunks: Sequence[Chunk], lengths: Sequence[int]) -> dict[str, Array]:
        """The plan on the host, computed for all of its rows at once."""
        length = np.asarray(lengths)
        start = np.asarray([chunk.start for chunk in chunks])
        end, last_row = start + length, np.cumsum(length)
        first_row = last_row - length
        of = np.repeat(np.arange(len(chunks)), length)
        positions = np.arange(int(last_row[-1])) + (start - first_row)[of]
        pages = self._page_table(chunks, end)
        page, offset = np.divmod(positions, self._page_tokens)
        tokens = chain.from_iterable(chunk.tokens for chunk in chunks)
        found: dict[str, Array] = {
            "tokens": np.fromiter(tokens, np.int64, len(positions)),
            "positions": positions,
            "slots": pages[of, page] * np.int64(self._page_tokens) + offset,
        }
        for kind, which in (("decode", length == 1), ("prefill", length > 1)):
            if which.any():
                widest = round_up(-(-int(end[which].max()) // self._page_tokens), self._width)
                found[f"{kind} pages"] = pages[which, :widest]
                found[f"{kind} start"] = first_row[which].astype(np.int32)
                found[f"{kind} len"] = length[which].astype(np.int32)
                found[f"{kind} end"] = end[which].astype(np.int32)
        return found

    def _page_table(self, chunks: Sequence[Chunk], end: Ints) -> npt.NDArray[np.int32]:
        """[chunks, most pages]: those that hold positions before ``end``."""
        used = -(-end // self._page_tokens)
        width = round_up(int(used.max()), self._width)
        table = np.zeros((len(chunks), width), dtype=np.int32)
        ids = chain.from_iterable(
            chunk.pages[:count] for chunk, count in zip(chunks, used.tolist(), strict=True)
        )
        inside = np.arange(table.shape[1]) < used[:, None]
        table[inside] = np.fromiter(ids, np.int32, int(used.sum()))
        return table

    def _runs(self, chunks: Sequence[Chunk], lengths: Sequence[int]) -> Runs:
        """Segments as (first row, rows, adapter); none when every row is the base model's."""
        if all(chunk.adapter == NO_ADAPTER for chunk in chunks):
            return ()
        adapters: list[int] = []
        for chunk, length in zip(chunks, lengths, strict=True):
            base = chunk.base_rows
            adapters += [NO_ADAPTER] * base + [chunk.adapter] * (length - base)
        runs = Segments.cut(adapters, tile=None)
        return Segments.split(runs, self._tile(runs)) if self._tiles else runs

    def _tile(self, runs: Runs) -> int:
        longest = max(length for _, length, _ in runs)
        return next((tile for tile in self._tiles if tile >= longest), self._tiles[-1])

    def _segments(self, columns: torch.Tensor, runs: Runs) -> Segments | None:
        if not runs:
            return None
        start, length, adapter = columns.unbind(0)
        longest = self._tile(runs) if self._tiles else max(length for _, length, _ in runs)
        return Segments(start=start, length=length, adapter=adapter, longest=longest, runs=runs)


def _decode(there: Mapping[str, torch.Tensor]) -> DecodeRows | None:
    if "decode pages" not in there:
        return None
    return DecodeRows(
        page_table=there["decode pages"],
        context_lens=there["decode end"],
        rows=there["decode start"],
        query_len=there["decode len"],
    )


def _prefill(there: Mapping[str, torch.Tensor], longest: int) -> PrefillChunks | None:
    if "prefill pages" not in there:
        return None
    return PrefillChunks(
        page_table=there["prefill pages"],
        query_start=there["prefill start"],
        query_len=there["prefill len"],
        context_lens=there["prefill end"],
        longest=longest,
    )


def _sources(chunks: Sequence[Chunk], last: LastDraws | None) -> Ints:
    assert last is not None, "a token still being drawn is on the device"
    return np.asarray([last.row(chunk) for chunk in chunks])


def _head_rows(chunks: Sequence[Chunk], first_rows: Sequence[int]) -> tuple[list[int], HeadLayout]:
    """A chunk's last row predicts its draw, with drafts its last rows do; row i predicts token
    i + 1 for prompt logprobs; what is pooled is every row, or the last."""
    rows: list[int] = []
    draws: list[tuple[int, int]] = []
    prompts: list[tuple[int, int, int]] = []
    for index, chunk in enumerate(chunks):
        first, end = first_rows[index], first_rows[index + 1]
        for row in range(end - len(chunk.draws), end):
            draws.append((index, len(rows)))
            rows.append(row)
    for index, chunk in enumerate(chunks):
        first, end = first_rows[index], first_rows[index + 1]
        if chunk.prompt_logprobs is not None and end - first > 1:
            prompts.append((index, len(rows), end - first - 1))
            rows += range(first, end - 1)
    pools: list[tuple[int, int, int]] = []
    for index, chunk in enumerate(chunks):
        if chunk.pooling is not None:
            first, end = first_rows[index], first_rows[index + 1]
            first = end - 1 if chunk.pooling is Pooling.LAST else first
            pools.append((index, len(rows), end - first))
            rows += range(first, end)
    return rows, HeadLayout(tuple(draws), tuple(prompts), tuple(pools))
