"""What adapters do to the embeddings and to the head: rows of a vocabulary's table, in pages.

A *table* has a row [H] per token. An adapter may replace it whole, replace some rows, and add a
product of low rank; see ``adapters.pack.Table``. Few adapters do, so this is plain tensor code
beside the kernels: passes without such an adapter never come here, and passes with one are not
captured as graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from adapters.keys import EMBEDDING, HEAD
from kernels.lora_shrink import project
from kernels.segments import BASE


@dataclass(frozen=True, slots=True)
class PagedMatrix:
    """A matrix [rows, width] in the pool, in blocks of ``each`` rows (the last may be shorter)."""

    rows: int
    width: int
    each: int
    stride: int  # elements from row to row within a block
    offsets: tuple[int, ...]  # of the blocks, in elements of the flat pool
    where: torch.Tensor  # the same, int64 on the pool's device

    def take(self, pool: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[n] row numbers to [n, width]."""
        first = self.where[ids // self.each] + ids % self.each * self.stride
        return pool[first[:, None] + torch.arange(self.width, device=ids.device)]

    def all(self, pool: torch.Tensor) -> torch.Tensor:
        """[rows, width], for small ones."""
        return torch.cat([self._view(pool, i) for i in range(len(self.offsets))])

    def product(self, x: torch.Tensor, pool: torch.Tensor, deterministic: bool) -> torch.Tensor:
        """x [n, width] by the transposed matrix: [n, rows] float32."""
        blocks = (self._view(pool, i).float() for i in range(len(self.offsets)))
        return torch.cat([project(x, block, deterministic) for block in blocks], dim=1)

    def _view(self, pool: torch.Tensor, block: int) -> torch.Tensor:
        rows = min(self.each, self.rows - block * self.each)
        return pool.as_strided((rows, self.width), (self.stride, 1), self.offsets[block])


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedTable:
    """One adapter's changes to one table."""

    whole: PagedMatrix | None = None  # [V, H]
    rows: PagedMatrix | None = None  # [n, H]
    ids: torch.Tensor | None = None  # [n] int64 ascending, the tokens of ``rows``
    low: PagedMatrix | None = None  # [V, r]
    high: PagedMatrix | None = None  # [r, H]


Tables = Mapping[int, Mapping[str, PagedTable]]  # adapter row -> EMBEDDING or HEAD -> table


@dataclass(frozen=True, slots=True)
class OuterPass:
    """The tables of one forward pass."""

    pool: torch.Tensor  # flat
    tables: Tables
    deterministic: bool

    def embed(
        self,
        tokens: torch.Tensor,
        out: torch.Tensor,
        runs: Sequence[tuple[int, int, int]],
    ) -> None:
        """Change the embeddings [T, H] of rows whose adapter has a table. ``runs``: segments."""
        for start, length, adapter in runs:
            table = self.tables.get(adapter, {}).get(EMBEDDING) if adapter != BASE else None
            if table is not None and length:
                part = slice(start, start + length)
                out[part] = self._embedded(tokens[part], out[part], table).to(out.dtype)

    def head(self, x: torch.Tensor, logits: torch.Tensor, adapters: Sequence[int]) -> torch.Tensor:
        """Logits [n, V] for hidden states [n, H], each row's adapter given; the base's are in."""
        first = 0
        for adapter, rows in groupby(adapters):
            end = first + len(list(rows))
            table = self.tables.get(adapter, {}).get(HEAD) if adapter != BASE else None
            if table is not None:
                logits[first:end] = self._logits(x[first:end], logits[first:end], table)
            first = end
        return logits

    def _embedded(self, ids: torch.Tensor, x: torch.Tensor, table: PagedTable) -> torch.Tensor:
        x = x.float() if table.whole is None else table.whole.take(self.pool, ids).float()
        if table.rows is not None and table.ids is not None:
            at = torch.searchsorted(table.ids, ids).clamp_(max=table.rows.rows - 1)
            found = (table.ids[at] == ids)[:, None]
            x = torch.where(found, table.rows.take(self.pool, at).float(), x)
        if table.low is not None and table.high is not None:
            high = table.high.all(self.pool).float().t().contiguous()
            x = x + project(table.low.take(self.pool, ids), high, self.deterministic)
        return x

    def _logits(self, x: torch.Tensor, logits: torch.Tensor, table: PagedTable) -> torch.Tensor:
        exact = self.deterministic
        if table.whole is not None:
            logits = table.whole.product(x, self.pool, exact)
        if table.rows is not None and table.ids is not None:
            logits[:, table.ids] = table.rows.product(x, self.pool, exact)
        if table.low is not None and table.high is not None:
            narrow = table.high.product(x, self.pool, exact)
            logits = logits + table.low.product(narrow, self.pool, exact)
        return logits
