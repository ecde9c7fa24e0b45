"""Lays a packed adapter out in whole pages, in host memory, so that one copy brings it in.

Done once per adapter, where it is loaded and not in the engine's loop. The result says for every
block where it starts, counting the adapter's own pages as consecutive; which pages of the pool
they become is decided when it is placed. Gains and biases depend on the base's own layers, which
belong to the loop: they get their place here and their values there (``adapter_vectors``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from adapters.keys import OUTSIDE
from adapters.pack import Factor, PackedAdapter, Table
from engine.adapter_table import SiteShape, site_shapes
from engine.errors import AdapterUnusable
from engine.models.spec import ModelSpec
from engine.placement import (
    A_ROWS,
    SITES,
    Block,
    BlockTooLarge,
    blocks_of_a,
    blocks_of_b,
    blocks_of_table,
    blocks_of_vector,
    place,
)
from engine.team.supply import Elsewhere
from kernels.lora_table import ABSENT, site_blocks

BITS = {2: torch.int16, 4: torch.int32}  # by item size: numpy has no bfloat16

Offsets = npt.NDArray[np.int64]
Side = Literal["a", "b", "bias", "gain", "whole", "rows", "low", "high"]


@dataclass(frozen=True, slots=True)
class Span:
    """The blocks of one matrix or vector."""

    layer: int  # OUTSIDE for a table
    site: str  # or the table's name
    slice: int
    side: Side
    blocks: Sequence[Block]
    source: torch.Tensor | None  # None: a vector, found when the adapter is first placed
    width: int  # columns
    largest: torch.Tensor | None = None  # magnitudes of a source in codes


@dataclass(frozen=True, slots=True)
class SiteOffsets:
    """Where a site's blocks start in the adapter's own pages, in elements, for all layers L.

    ABSENT where there is none.
    """

    a: Offsets  # [L, slices, RB]
    ranks: npt.NDArray[np.int32]  # [L, slices]
    columns: Mapping[str, Offsets]  # "b", and "bias" and "gain" if it has any: [L, NB]


@dataclass(frozen=True, slots=True)
class LaidOut:
    digest: str
    host: torch.Tensor  # [pages, elements of a page], pinned where a GPU reads it
    sites: Mapping[str, SiteOffsets]
    tables: Sequence[tuple[Span, Sequence[int]]]  # and where each block starts
    ids: Mapping[str, torch.Tensor]  # by table: the tokens of its "rows", ascending
    packed: PackedAdapter | None = None  # what the vectors yet to be filled in are found from
    vectors: list[tuple[Span, Sequence[int]]] = field(default_factory=list)  # those
    elsewhere: Elsewhere | None = None  # the parts that other members of a team keep

    @property
    def pages(self) -> int:
        return self.host.shape[0]

    @property
    def nbytes(self) -> int:
        """What it takes: pinned memory comes in powers of two."""
        size = self.host.nbytes
        return 1 << (size - 1).bit_length() if self.host.is_pinned() and size else size

    def fill(self, span: Span, offsets: Sequence[int], source: torch.Tensor) -> None:
        """Copy a matrix's rows to their place, blocks that lie end to end at once.

        In numpy: torch would start a team of threads for each thread that loads, and they would
        fight the forward pass for its cores.
        """
        if span.largest is not None:
            self._fill_codes(span, offsets, source, span.largest)
            return
        bits = BITS[self.host.itemsize]
        memory = self.host.view(bits).view(-1).numpy()
        rows = source.to(self.host.dtype).contiguous().view(bits).numpy()
        stride, first = span.blocks[0].stride, 0
        for i, block in enumerate(span.blocks):
            last = i + 1 == len(span.blocks)
            if not last and offsets[i] + block.elements == offsets[i + 1]:
                continue
            target = memory[offsets[first] : offsets[i] + block.elements].reshape(-1, stride)
            start = span.blocks[first].first
            target[:, : span.width] = rows[start : block.first + block.rows]
            first = i + 1

    def _fill_codes(
        self, span: Span, offsets: Sequence[int], source: torch.Tensor, largest: torch.Tensor
    ) -> None:
        """Blocks of one size that lie end to end at once."""
        item, bits = self.host.itemsize, BITS[self.host.itemsize]
        memory = self.host.view(torch.uint8).view(-1).numpy()
        rows = source.contiguous().view(torch.uint8).numpy()
        sizes = largest.to(self.host.dtype).view(bits).numpy()
        for first, count in _alike(span.blocks, offsets):
            block = span.blocks[first]
            start, size = offsets[first] * item, block.elements * item
            run = memory[start : start + count * size].reshape(count, size)
            which = slice(block.first, block.first + count * block.rows)
            head = run[:, : block.rows * item].view(sizes.dtype)
            head[:] = sizes[which].reshape(count, block.rows)
            codes = run[:, block.head * item :][:, : block.rows * block.stride]
            target = codes.reshape(count, block.rows, block.stride)
            target[:, :, : span.width] = rows[which].reshape(count, block.rows, span.width)


class AdapterLayout:
    """For one model, page size and dtype. Thread-safe."""

    def __init__(
        self, spec: ModelSpec, page_elements: int, dtype: torch.dtype, *, pinned: bool
    ) -> None:
        self._spec, self._page, self._dtype, self._pinned = spec, page_elements, dtype, pinned
        self._shapes = site_shapes(spec)
        self._first = {site: _first_blocks(shape) for site, shape in self._shapes.items()}

    def lay_out(self, packed: PackedAdapter) -> LaidOut:
        """Raises AdapterUnusable when it has another shape or a block exceeds a page."""
        spans = [*self._spans(packed), *self._table_spans(packed)]
        try:
            sizes = [block.elements for span in spans for block in span.blocks]
            offsets, pages = place(sizes, self._page)
        except BlockTooLarge as error:
            raise AdapterUnusable(
                f"adapter {packed.digest} of rank {packed.rank}: {error}; use larger pages"
            ) from error
        ends = np.cumsum([len(span.blocks) for span in spans]).tolist()
        placed = [
            (span, offsets[end - len(span.blocks) : end])
            for span, end in zip(spans, ends, strict=True)
        ]
        unfilled: list[tuple[Span, Sequence[int]]] = [
            (span, starts) for span, starts in placed if span.source is None
        ]
        laid = LaidOut(
            digest=packed.digest,
            host=torch.zeros((pages, self._page), dtype=self._dtype, pin_memory=self._pinned),
            sites=self._sites(packed, placed),
            tables=[(span, starts) for span, starts in placed if span.layer == OUTSIDE],
            ids={name: torch.tensor(sorted(t.ids)) for name, t in packed.tables.items() if t.ids},
            packed=packed if unfilled else None,
            vectors=unfilled,
        )
        for span, starts in placed:
            if span.source is not None:
                laid.fill(span, starts, span.source)
        return laid

    def _spans(self, packed: PackedAdapter) -> Iterator[Span]:
        for layer in range(self._spec.num_layers):
            for site, modules in SITES.items():
                for number, module in enumerate(modules):
                    factor = packed.factors.get((layer, module))
                    if factor is not None:
                        self._check(packed, layer, site, number, factor)
                        yield from _factor_spans(layer, site, number, factor, self._dtype.itemsize)

    def _table_spans(self, packed: PackedAdapter) -> Iterator[Span]:
        for name, table in packed.tables.items():
            self._check_table(packed, name, table)
            for side, matrix in _matrices(table):
                rows, width = matrix.shape
                yield Span(
                    OUTSIDE, name, 0, side, blocks_of_table(rows, width, self._page), matrix, width
                )

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

    def _check_table(self, packed: PackedAdapter, name: str, table: Table) -> None:
        vocabulary = self._spec.vocab_size
        rows = {len(m) for m in (table.whole, table.low) if m is not None}
        if rows - {vocabulary} or any(token >= vocabulary for token in table.ids):
            raise AdapterUnusable(
                f"adapter {packed.digest}: {name}: rows beyond the base's {vocabulary} tokens"
            )

    def _sites(
        self, packed: PackedAdapter, placed: Sequence[tuple[Span, Sequence[int]]]
    ) -> Mapping[str, SiteOffsets]:
        biased = any(factor.biased for factor in packed.factors.values())
        sites = {
            name: self._absent(shape, packed.rank, biased) for name, shape in self._shapes.items()
        }
        for span, offsets in placed:
            if span.layer == OUTSIDE:
                continue
            site = sites[span.site]
            if span.side == "a":
                site.a[span.layer, span.slice, : len(offsets)] = offsets
                site.ranks[span.layer, span.slice] = sum(block.rows for block in span.blocks)
            else:
                first = self._first[span.site][span.slice]
                site.columns[span.side][span.layer, first : first + len(offsets)] = offsets
        return sites

    def _absent(self, shape: SiteShape, rank: int, biased: bool) -> SiteOffsets:
        def absent(*size: int) -> Offsets:
            return np.full((self._spec.num_layers, *size), ABSENT, dtype=np.int64)

        return SiteOffsets(
            a=absent(len(shape.slices), max(1, -(-rank // A_ROWS))),
            ranks=np.zeros((self._spec.num_layers, len(shape.slices)), dtype=np.int32),
            columns={
                side: absent(shape.blocks) for side in ("b", *(("bias", "gain") if biased else ()))
            },
        )


def _alike(blocks: Sequence[Block], offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of blocks of as many rows that lie end to end."""
    first = 0
    for i in range(1, len(blocks) + 1):
        ended = i == len(blocks) or blocks[i].rows != blocks[first].rows
        if ended or offsets[i] != offsets[i - 1] + blocks[i - 1].elements:
            yield first, i - first
            first = i


def _factor_spans(layer: int, site: str, number: int, factor: Factor, item: int) -> Iterator[Span]:
    """``item``: bytes of an element of the pool."""
    rank, inputs = factor.a.shape
    outputs = factor.b.shape[0]
    if rank:
        each = 1 if factor.a_largest is None else item
        a, b = blocks_of_a(rank, inputs, each), blocks_of_b(outputs, rank, each)
        yield Span(layer, site, number, "a", a, factor.a, inputs, factor.a_largest)
        yield Span(layer, site, number, "b", b, factor.b, rank, factor.b_largest)
    if factor.gained:
        yield Span(layer, site, number, "gain", blocks_of_vector(outputs), None, 1)
    if factor.biased:
        yield Span(layer, site, number, "bias", blocks_of_vector(outputs), None, 1)


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


def _first_blocks(shape: SiteShape) -> list[int]:
    """Number of each slice's first B block within its site."""
    owners = site_blocks(shape.slices)[0]
    return [owners.index(number) for number in range(len(shape.slices))]
