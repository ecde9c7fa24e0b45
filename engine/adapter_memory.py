"""Lays a packed adapter out in pages of the pool and enters it in the device table.

The layout is computed once per adapter on the host (``placement``), filled there into a buffer of
whole pages, and copied page by page; then the table row gets the units of every block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from adapters.pack import Factor, PackedAdapter
from engine.adapter_table import AdapterTable, SiteRow, site_shapes
from engine.errors import AdapterUnusable
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.placement import (
    A_ROWS,
    SITES,
    UNIT,
    Block,
    BlockTooLarge,
    blocks_of_a,
    blocks_of_b,
    place,
)
from kernels.lora_table import ABSENT, site_blocks


@dataclass(frozen=True, slots=True)
class _Placed:
    """One block and where it goes."""

    layer: int
    site: str
    slice: int
    side: str  # "a" or "b"
    index: int  # of the block within its slice
    block: Block
    factor: Factor


class AdapterMemory:
    """Belongs to the engine loop's thread. The caller owns the pages and the rows."""

    def __init__(self, spec: ModelSpec, memory: PageMemory, table: AdapterTable) -> None:
        self._spec, self._memory, self._table = spec, memory, table
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
        for placed, offset in zip(blocks, offsets, strict=True):
            _fill(flat[offset : offset + placed.block.elements], placed)
        device = self._memory.pool.device
        where = torch.tensor(list(pages), dtype=torch.int64, device=device)
        self._memory.pool.index_copy_(0, where, host.to(device))
        self._table.write(row, self._entry(packed, blocks, self._units(offsets, pages)))

    def clear(self, row: int) -> None:
        self._table.clear(row)

    def _lay_out(self, packed: PackedAdapter) -> tuple[list[_Placed], list[int], int]:
        """Blocks in memory order, their offsets, and the pages they take."""
        blocks = list(self._blocks(packed))
        try:
            sizes = [placed.block.elements for placed in blocks]
            offsets, pages = place(sizes, self._memory.pool.shape[1])
        except BlockTooLarge as error:
            raise AdapterUnusable(
                f"adapter {packed.digest} of rank {packed.rank}: {error}; use larger pages"
            ) from error
        return blocks, offsets, pages

    def _blocks(self, packed: PackedAdapter) -> Iterator[_Placed]:
        for layer in range(self._spec.num_layers):
            for site, modules in SITES.items():
                for number, module in enumerate(modules):
                    factor = packed.factors.get((layer, module))
                    if factor is None:
                        continue
                    self._check(packed, layer, site, number, factor)
                    rank, inputs = factor.a.shape
                    for i, block in enumerate(blocks_of_a(rank, inputs)):
                        yield _Placed(layer, site, number, "a", i, block, factor)
                    for i, block in enumerate(blocks_of_b(factor.b.shape[0], rank)):
                        yield _Placed(layer, site, number, "b", i, block, factor)

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

    def _units(self, offsets: Sequence[int], pages: Sequence[int]) -> list[int]:
        size = self._memory.pool.shape[1]
        return [(pages[at // size] * size + at % size) // UNIT for at in offsets]

    def _entry(
        self, packed: PackedAdapter, blocks: Sequence[_Placed], units: Sequence[int]
    ) -> dict[str, SiteRow]:
        layers, capacity = self._spec.num_layers, -(-packed.rank // A_ROWS)
        entry = {}
        for site, shape in self._shapes.items():
            slices = len(shape.slices)
            entry[site] = SiteRow(
                a_units=torch.full((layers, slices, capacity), ABSENT, dtype=torch.int32),
                b_units=torch.full((layers, shape.blocks), ABSENT, dtype=torch.int32),
                ranks=torch.zeros((layers, slices), dtype=torch.int32),
            )
        first_block = {site: _first_blocks(shape.slices) for site, shape in self._shapes.items()}
        for placed, unit in zip(blocks, units, strict=True):
            row = entry[placed.site]
            if placed.side == "a":
                row.a_units[placed.layer, placed.slice, placed.index] = unit
                row.ranks[placed.layer, placed.slice] = placed.factor.a.shape[0]
            else:
                at = first_block[placed.site][placed.slice] + placed.index
                row.b_units[placed.layer, at] = unit
        return entry


def _first_blocks(slices: tuple[int, ...]) -> list[int]:
    """Number of each slice's first B block within its site."""
    owners = site_blocks(slices)[0]
    return [owners.index(number) for number in range(len(slices))]


def _fill(memory: torch.Tensor, placed: _Placed) -> None:
    factor = placed.factor.a if placed.side == "a" else placed.factor.b
    rows = factor[placed.block.first : placed.block.first + placed.block.rows]
    memory.view(placed.block.rows, placed.block.stride)[:, : rows.shape[1]] = rows
