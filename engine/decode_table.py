"""The host's half of a captured decode pass: a row of int32 for each sequence.

    [rows, COLUMNS + MAXP]   what the columns below say, then the sequence's page table

A row is written whole when a sequence takes it or has other pages, and otherwise only where every
step moves it, for all rows at once. Segments of adapters use the same rows, one each, from
the first: they have nothing to do with the sequence of that row. Floats are stored by their bits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.step import NO_ADAPTER, Chunk
from kernels.philox import uniforms
from kernels.segments import SEGMENT_TILES

COLUMNS = 16
TOKEN, POSITION, SLOT, CONTEXT, START, LENGTH, ADAPTER, SOURCE = range(8)
TOP_K, TEMPERATURE, TOP_P, MIN_P, UNIFORM, QUERY = range(8, 14)
UNUSED = [0] * COLUMNS  # a row past the batch
UNUSED[SLOT] = UNUSED[SOURCE] = -1
UNUSED[ADAPTER] = NO_ADAPTER
SEGMENT_TILE = SEGMENT_TILES[0]

Ints = npt.NDArray[np.int32]


def enter_segments(table: Ints, adapters: npt.NDArray[np.integer]) -> None:
    """Consecutive rows of one adapter, at most a tile of them. ``adapters``: of each row in use."""
    at = np.arange(len(adapters))
    first = np.ones(len(adapters), dtype=bool)
    first[1:] = adapters[1:] != adapters[:-1]
    since = at - np.maximum.accumulate(np.where(first, at, 0))
    start = np.flatnonzero(since % SEGMENT_TILE == 0)
    table[:, START : ADAPTER + 1] = (0, 0, NO_ADAPTER)
    table[: len(start), START] = start
    table[: len(start), LENGTH] = np.diff(start, append=len(adapters))
    table[: len(start), ADAPTER] = adapters[start]


class DecodeTable:
    """Belongs to the engine loop's thread."""

    def __init__(self, max_seqs: int, max_pages: int, page_tokens: int) -> None:
        self.packed: Ints = np.zeros((max_seqs, COLUMNS + max_pages), dtype=np.int32)
        self.packed[:, :COLUMNS] = UNUSED
        self._floats = self.packed.view(np.float32)
        self._page_tokens = page_tokens
        self._seeds = [0] * max_seqs
        self._held: list[tuple[int, Sequence[int]] | None] = [None] * max_seqs
        self._used = 0  # rows of the latest batch

    def fill(self, chunks: Sequence[Chunk], sources: Sequence[int], rows: int) -> int:
        """Enter chunks of one token that draw, and blank the rows up to ``rows``.

        ``sources``: where each token lies among the last draws, or -1. Returns the columns in use.
        """
        count = len(chunks)
        self._hold(chunks)
        table, at = self.packed[:count], np.arange(count)
        start = np.fromiter((chunk.start for chunk in chunks), np.int32, count)
        page, offset = np.divmod(start, self._page_tokens)
        table[:, TOKEN] = [chunk.tokens[0] for chunk in chunks]
        table[:, POSITION] = start
        table[:, SLOT] = table[at, COLUMNS + page] * self._page_tokens + offset
        table[:, CONTEXT] = start + 1
        table[:, SOURCE] = sources
        table[:, QUERY] = 1  # token; none in a row past the batch
        self.packed[count:rows, :COLUMNS] = UNUSED
        adapters = np.fromiter((chunk.adapter for chunk in chunks), np.int32, count)
        enter_segments(self.packed[:rows], adapters)
        self._throw(chunks)
        return COLUMNS + int(page.max()) + 1

    def _hold(self, chunks: Sequence[Chunk]) -> None:
        for row, chunk in enumerate(chunks):
            held = (
                chunk.sequence,
                chunk.pages,
            )  # any page may be exchanged for one with the same KV
            if held != self._held[row]:
                self._held[row] = held
                self._write(row, chunk)
        for row in range(len(chunks), self._used):
            self._held[row] = None
        self._used = len(chunks)

    def _write(self, row: int, chunk: Chunk) -> None:
        assert chunk.draw is not None
        wanted = chunk.draw.sampling
        self._seeds[row] = chunk.draw.seed
        self.packed[row, COLUMNS : COLUMNS + len(chunk.pages)] = chunk.pages
        self.packed[row, TOP_K] = wanted.top_k
        self._floats[row, TEMPERATURE] = wanted.temperature
        self._floats[row, TOP_P] = wanted.top_p
        self._floats[row, MIN_P] = wanted.min_p

    def _throw(self, chunks: Sequence[Chunk]) -> None:
        """The random numbers of rows that are not greedy."""
        warm = np.flatnonzero(self._floats[: len(chunks), TEMPERATURE] > 0).tolist()
        if warm:
            positions = [chunks[row].draw.position for row in warm]
            seeds = [self._seeds[row] for row in warm]
            self._floats[warm, UNIFORM] = uniforms(seeds, positions).numpy()
