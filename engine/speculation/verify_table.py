"""The host's half of a captured pass that verifies drafts: as ``DecodeTable``, but with a row of
int32 for each token.

Every sequence has as many rows as its tokens may be, one after the other; of those it does not need
nothing is written. What is a sequence's and not a token's (its context, how many tokens it has, its
page table) stands in the row of the sequence's own number, and has nothing to do with the token of
that row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.decode_table import (
    COLUMNS,
    CONTEXT,
    MIN_P,
    POSITION,
    QUERY,
    SLOT,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    UNIFORM,
    UNUSED,
    enter_segments,
)
from engine.page_size import pages_of_tokens
from engine.step import Chunk, Draw
from kernels.philox import uniforms

Ints = npt.NDArray[np.int32]


class VerifyTable:
    """Belongs to the engine loop's thread."""

    def __init__(self, max_seqs: int, max_pages: int, page_tokens: int, *, queries: int) -> None:
        """``queries``: tokens of one sequence, its drafts included, at most."""
        rows = max_seqs * queries
        self.packed: Ints = np.zeros((rows, COLUMNS + max_pages), dtype=np.int32)
        self.packed[:, :COLUMNS] = UNUSED
        self._floats = self.packed.view(np.float32)
        self._page_tokens, self._queries = page_tokens, queries

    def fill(self, chunks: Sequence[Chunk], rows: int) -> int:
        """Enter chunks that decode, with drafts or without, and blank the rows up to ``rows``.
        Returns the columns in use."""
        Q, table = self._queries, self.packed
        table[:rows, :COLUMNS] = UNUSED
        counts = np.fromiter((len(chunk.tokens) for chunk in chunks), np.int64, len(chunks))
        of = np.repeat(np.arange(len(chunks)), counts)
        place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = of * Q + place
        start = np.fromiter((chunk.start for chunk in chunks), np.int64, len(chunks))
        table[: len(chunks), CONTEXT] = start + counts
        table[: len(chunks), QUERY] = counts
        for number, chunk in enumerate(chunks):
            table[number, COLUMNS : COLUMNS + len(chunk.pages)] = chunk.pages
        positions = start[of] + place
        page, offset = np.divmod(positions, self._page_tokens)
        table[at, TOKEN] = [token for chunk in chunks for token in chunk.tokens]
        table[at, POSITION] = positions
        table[at, SLOT] = table[of, COLUMNS + page] * self._page_tokens + offset
        enter_segments(table[:rows], np.repeat([chunk.adapter for chunk in chunks], Q))
        self._draws(at, [draw for chunk in chunks for draw in chunk.draws])
        return COLUMNS + pages_of_tokens(int(positions.max()) + 1, self._page_tokens)

    def _draws(self, at: npt.NDArray[np.int64], draws: Sequence[Draw]) -> None:
        wanted = [draw.sampling for draw in draws]
        self.packed[at, TOP_K] = [w.top_k for w in wanted]
        for column, values in (
            (TEMPERATURE, [w.temperature for w in wanted]),
            (TOP_P, [w.top_p for w in wanted]),
            (MIN_P, [w.min_p for w in wanted]),
        ):
            self._floats[at, column] = values
        warm = [i for i, w in enumerate(wanted) if w.temperature > 0]
        if warm:
            found = uniforms([draws[i].seed for i in warm], [draws[i].position for i in warm])
            self._floats[at[warm], UNIFORM] = found.numpy()
