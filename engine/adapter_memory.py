"""Lays a packed adapter out in pages of the pool and enters it in the device table.

The layout is computed once per adapter on the host (``placement``), filled there into a buffer of
whole pages, and copied page by page; then the table row gets the units of every block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from adapters.keys import OUTSIDE
from adapters.pack import Factor, PackedAdapter, Table
from engine.adapter_table import AdapterTable, SiteRow, site_shapes
from engine.adapter_vectors import BaseVectors
from engine.errors import AdapterUnusable
from engine.models.spec import ModelSpec
from engine.outer import PagedMatrix, PagedTable
from engine.page_memory import PageMemory
from engine.placement import (
    A_ROWS,
    SITES,
    UNIT,
    Block,
    BlockTooLarge,
    blocks_of_a,
    blocks_of_b,
    blocks_of_table,
    blocks_of_vector,
    place,
)
from kernels.lora_table import ABSENT, site_blocks

Side = Literal["a", "b", "bias", "gain", "whole", "rows", "low", "high"]


@dataclass(frozen=True, slots=True)
class _Placed:
    """One block and where it goes."""

    layer: int  # OUTSIDE for a table
    site: str  # or the table's name
    slice: int
    side: Side
    index: int  # of the block within its slice
    block: Block
    source: torch.Tensor | None  # the matrix it is cut from; None: a vector found when placing


class AdapterMemory:
    """Belongs to the engine loop's thread. The caller owns the pages and the rows."""

    def __init__(
        self,
        spec: ModelSpec,
        memory: PageMemory,
        table: AdapterTable,
        base: BaseVectors | None = None,
    ) -> None:
        """Without ``base``, adapters can have A and B of linear layers alone."""
        self._spec, self._memory, self._table, self._base = spec, memory, table, base
        self._shapes = site_shapes(spec)

    def pages_for(self, packed: PackedAdapter) -> int:
        """Whole pages it takes. Raises AdapterUnusable when a block exceeds a page."""
        return self._lay_out(packed)[2]

    def place(self, row: int, packed: PackedAdapter, pages: Sequence[int]) -> None:
        """Copy into ``pages`` and point table row ``row`` at them."""
        blocks, offsets, needed = self._lay_out(packed)
        if len(pages) != needed:
            raise AdapterUnusable(
                f"adapter {packed.digest}: got {len(pages)} pages, it takes {needed}"
            )
        host = torch.zeros((needed, self._memory.pool.shape[1]), dtype=self._memory.pool.dtype)
        flat = host.view(-1)
        vectors = self._vectors(packed)
        for placed, offset in zip(blocks, offsets, strict=True):
            source = placed.source
            if source is None:
                source = vectors[placed.layer, placed.site, placed.slice, placed.side]
            _fill(flat[offset : offset + placed.block.elements], placed.block, source)
        device = self._memory.pool.device
        where = torch.tensor(list(pages), dtype=torch.int64, device=device)
        self._memory.pool.index_copy_(0, where, host.to(device))
        starts = self._starts(offsets, pages)
        entry = self._entry(packed, blocks, [start // UNIT for start in starts])
        self._table.write(row, entry, self._tables(packed, blocks, starts))

    def clear(self, row: int) -> None:
        self._table.clear(row)

    def _lay_out(self, packed: PackedAdapter) -> tuple[list[_Placed], list[int], int]:
        """Blocks in memory order, their offsets, and the pages they take."""
        blocks = [*self._blocks(packed), *self._table_blocks(packed)]
        try:
            sizes = [placed.block.elements for placed in blocks]
            offsets, pages = place(sizes, self._memory.pool.shape[1])
        except BlockTooLarge as error:
            raise AdapterUnusable(
                f"adapter {packed.digest} of rank {packed.rank}: {error}; use larger pages"
            ) from error
        return blocks, offsets, pages

    def _factors(self, packed: PackedAdapter) -> Iterator[tuple[int, str, int, Factor]]:
        """(layer, site, slice, factor) in memory order."""
        for layer in range(self._spec.num_layers):
            for site, modules in SITES.items():
                for number, module in enumerate(modules):
                    factor = packed.factors.get((layer, module))
                    if factor is not None:
                        yield layer, site, number, factor

    def _blocks(self, packed: PackedAdapter) -> Iterator[_Placed]:
        for layer, site, number, factor in self._factors(packed):
            self._check(packed, layer, site, number, factor)
            rank, inputs = factor.a.shape
            outputs = factor.b.shape[0]
            cuts: list[tuple[Side, list[Block], torch.Tensor | None]] = []
            if rank:
                cuts = [("a", blocks_of_a(rank, inputs), factor.a)]
                cuts += [("b", blocks_of_b(outputs, rank), factor.b)]
            if factor.gained:
                cuts += [("gain", blocks_of_vector(outputs), None)]
            if factor.biased:
                cuts += [("bias", blocks_of_vector(outputs), None)]
            for side, blocks, source in cuts:
                for i, block in enumerate(blocks):
                    yield _Placed(layer, site, number, side, i, block, source)

    def _table_blocks(self, packed: PackedAdapter) -> Iterator[_Placed]:
        for name, table in packed.tables.items():
            for side, matrix in _matrices(table):
                rows, width = matrix.shape
                cut = blocks_of_table(rows, width, self._memory.pool.shape[1])
                for i, block in enumerate(cut):
                    yield _Placed(OUTSIDE, name, 0, side, i, block, matrix)

    def _check(
        self, packed: PackedAdapter, layer: int, site: str, number: int, factor: Factor
    ) -> None:
        shape = self._shapes[site]
        found = (*factor.a.shape, *factor.b.shape)
        rank = factor.a.shape[0]
        if found != (rank, shape.width, shape.slices[number], rank):
            raise AdapterUnusable(
                f"adapter {packed.digest}: layer {layer} {SITES[site][number]}: found A and B "
                f"{list(found)}; expected {[rank, shape.width, shape.slices[number], rank]}"
            )

    def _vectors(self, packed: PackedAdapter) -> dict[tuple[int, str, int, Side], torch.Tensor]:
        """Gains and biases, as columns [N, 1]."""
        found: dict[tuple[int, str, int, Side], torch.Tensor] = {}
        for layer, site, number, factor in self._factors(packed):
            if not factor.biased:
                continue
            if self._base is None:
                raise AdapterUnusable(f"adapter {packed.digest}: biases need the base's layers")
            slices = self._shapes[site].slices
            first = sum(slices[:number])
            columns = slice(first, first + slices[number])
            gain, bias = self._base.vectors(factor, layer, site, columns)
            for side, vector in (("gain", gain), ("bias", bias)):
                if vector is not None:
                    found[layer, site, number, side] = vector.unsqueeze(1)  # type: ignore[index]
        return found

    def _starts(self, offsets: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Elements from the start of the flat pool."""
        size = self._memory.pool.shape[1]
        return [pages[at // size] * size + at % size for at in offsets]

    def _entry(
        self, packed: PackedAdapter, blocks: Sequence[_Placed], units: Sequence[int]
    ) -> dict[str, SiteRow]:
        biased = any(factor.biased for factor in packed.factors.values())
        entry = self._empty_entry(max(1, -(-packed.rank // A_ROWS)), biased)
        first_block = {site: _first_blocks(shape.slices) for site, shape in self._shapes.items()}
        for placed, unit in zip(blocks, units, strict=True):
            if placed.layer == OUTSIDE:
                continue
            row = entry[placed.site]
            if placed.side == "a":
                row.a_units[placed.layer, placed.slice, placed.index] = unit
                assert placed.source is not None, "A has values"
                row.ranks[placed.layer, placed.slice] = placed.source.shape[0]
                continue
            column = {"b": row.b_units, "bias": row.bias_units, "gain": row.gain_units}[placed.side]
            assert column is not None, "an adapter with vectors has columns for them"
            column[placed.layer, first_block[placed.site][placed.slice] + placed.index] = unit
        return entry

    def _empty_entry(self, capacity: int, biased: bool) -> dict[str, SiteRow]:
        def absent(*shape: int) -> torch.Tensor:
            return torch.full((self._spec.num_layers, *shape), ABSENT, dtype=torch.int32)

        return {
            site: SiteRow(
                a_units=absent(len(shape.slices), capacity),
                b_units=absent(shape.blocks),
                ranks=absent(len(shape.slices)).zero_(),
                bias_units=absent(shape.blocks) if biased else None,
                gain_units=absent(shape.blocks) if biased else None,
            )
            for site, shape in self._shapes.items()
        }

    def _tables(
        self, packed: PackedAdapter, blocks: Sequence[_Placed], starts: Sequence[int]
    ) -> Mapping[str, PagedTable]:
        at: dict[tuple[str, Side], list[tuple[Block, int]]] = {}
        for placed, start in zip(blocks, starts, strict=True):
            if placed.layer == OUTSIDE:
                at.setdefault((placed.site, placed.side), []).append((placed.block, start))
        tables = {}
        for name, table in packed.tables.items():
            self._check_table(packed, name, table)
            paged = {side: self._paged(matrix, at[name, side]) for side, matrix in _matrices(table)}
            ids = torch.tensor(sorted(table.ids), device=self._memory.pool.device)
            tables[name] = PagedTable(**paged, ids=ids if table.ids else None)
        return tables

    def _check_table(self, packed: PackedAdapter, name: str, table: Table) -> None:
        vocabulary = self._spec.vocab_size
        rows = {len(m) for m in (table.whole, table.low) if m is not None}
        if rows - {vocabulary} or any(token >= vocabulary for token in table.ids):
            raise AdapterUnusable(
                f"adapter {packed.digest}: {name}: rows beyond the base's {vocabulary} tokens"
            )

    def _paged(self, matrix: torch.Tensor, blocks: Sequence[tuple[Block, int]]) -> PagedMatrix:
        block, starts = blocks[0][0], [start for _, start in blocks]
        return PagedMatrix(
            rows=matrix.shape[0],
            width=matrix.shape[1],
            each=block.rows,
            stride=block.stride,
            offsets=tuple(starts),
            where=torch.tensor(starts, dtype=torch.int64, device=self._memory.pool.device),
        )


def _matrices(table: Table) -> Iterator[tuple[Side, torch.Tensor]]:
    """A table's matrices in memory order; ``rows`` by ascending token."""
    if table.whole is not None:
        yield "whole", table.whole
    if table.rows is not None:
        order = sorted(range(len(table.ids)), key=table.ids.__getitem__)
        yield "rows", table.rows[order]
    if table.low is not None and table.high is not None:
        yield "low", table.low
        yield "high", table.high


def _first_blocks(slices: tuple[int, ...]) -> list[int]:
    """Number of each slice's first B block within its site."""
    owners = site_blocks(slices)[0]
    return [owners.index(number) for number in range(len(slices))]


def _fill(memory: torch.Tensor, block: Block, source: torch.Tensor) -> None:
    rows = source[block.first : block.first + block.rows]
    memory.view(block.rows, block.stride)[:, : rows.shape[1]] = rows
