"""Brings adapters that are laid out in host memory into pages of the pool, and finds them there.

On CUDA the copy runs on the side stream, after what is swapped out of those pages, and after the
passes under way only if they still touch them: mostly it is over when the first pass that uses the
adapter begins. That one waits for it on the device (``AdapterTable.arriving``); the host never
does.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from adapters.narrow import Narrow, narrowed, widened
from adapters.pack import PackedAdapter
from engine.adapter_layout import AdapterLayout, LaidOut, Offsets, Span
from engine.adapter_table import AdapterTable, SiteRow, site_shapes
from engine.adapter_vectors import BaseVectors
from engine.errors import AdapterUnusable
from engine.models.spec import ModelSpec
from engine.outer import PagedMatrix, PagedTable
from engine.page_memory import PageMemory
from engine.placement import SITES, UNIT
from engine.team.shard import Shard
from kernels.lora_table import ABSENT


class AdapterMemory:
    """Belongs to the engine loop's thread. The caller owns the pages and the rows."""

    def __init__(
        self,
        spec: ModelSpec,
        memory: PageMemory,
        table: AdapterTable,
        base: BaseVectors | None = None,
        *,
        shard: Shard | None = None,
    ) -> None:
        """Without ``base``, adapters can have A and B of linear layers alone. With a ``shard``,
        ``spec`` is its own, and of each adapter only that part is kept here."""
        self._shard = shard
        pool = memory.pool
        self._pool, self._table, self._base = pool, table, base
        self._shapes = site_shapes(spec)
        self._layout = AdapterLayout(spec, pool.shape[1], pool.dtype, pinned=pool.is_cuda)
        self._memory, self._stream = memory, memory.side
        self._pages: dict[int, Sequence[int]] = {}  # by row

    def lay_out(self, packed: PackedAdapter) -> LaidOut:
        """For any thread. Raises AdapterUnusable."""
        if (codes := self._table.codes) is not None:
            packed = narrowed(packed, Narrow(codes))
        own = packed if self._shard is None else self._shard.adapter(packed)
        return self._layout.lay_out(own)

    def size(self, packed: PackedAdapter) -> int:
        """Pages it would take. For any thread. Raises AdapterUnusable."""
        return self.lay_out(packed).pages

    def pages_for(self, laid: LaidOut) -> int:
        return laid.pages

    def touched(self, pages: Sequence[int]) -> bool:
        """Passes that may be under way use some of them."""
        return self._memory.touched(pages)

    def place(
        self, row: int, laid: LaidOut, pages: Sequence[int], *, after: bool | None = None
    ) -> None:
        """Copy into ``pages`` and point table row ``row`` at them. Raises AdapterUnusable.

        ``after``: whether to wait for the passes under way; None: where they touch these pages.
        """
        if len(pages) != laid.pages:
            raise AdapterUnusable(
                f"adapter {laid.digest}: got {len(pages)} pages, it takes {laid.pages}"
            )
        self._fill_vectors(laid)
        if self._stream is None:
            self._copy(laid.host, pages)
        else:
            if self.touched(pages) if after is None else after:
                self._stream.wait_stream(torch.cuda.current_stream(self._pool.device))
            with torch.cuda.stream(self._stream):
                self._copy(laid.host, pages)
                self._table.arriving[row] = self._stream.record_event()
        self._pages[row] = pages
        self._table.write(row, self._entry(laid, pages), self._tables(laid, pages))

    def clear(self, row: int) -> None:
        self._table.await_rows([row])  # its pages may be given away: let the copy end first
        self._table.clear(row)
        self._memory.leave(self._pages.pop(row, ()))

    def _fill_vectors(self, laid: LaidOut) -> None:
        """Gains and biases, which need the base's layers, once."""
        whose: tuple[int, str, int] | None = None
        found: dict[str, torch.Tensor | None] = {}
        while laid.vectors:
            span, offsets = laid.vectors[-1]
            if whose != (span.layer, span.site, span.slice):
                whose, found = (span.layer, span.site, span.slice), self._vectors(laid, span)
            if (vector := found[span.side]) is not None:
                laid.fill(span, offsets, vector.unsqueeze(1))
            laid.vectors.pop()

    def _vectors(self, laid: LaidOut, span: Span) -> dict[str, torch.Tensor | None]:
        assert laid.packed is not None, "an adapter with vectors keeps what they come from"
        if self._base is None:
            raise AdapterUnusable(f"adapter {laid.digest}: biases need the base's layers")
        slices = self._shapes[span.site].slices
        first = sum(slices[: span.slice])
        columns = slice(first, first + slices[span.slice])
        factor = widened(laid.packed.factors[span.layer, SITES[span.site][span.slice]])
        gain, bias = self._base.vectors(factor, span.layer, span.site, columns)
        return {"gain": gain, "bias": bias}

    def _copy(self, host: torch.Tensor, pages: Sequence[int]) -> None:
        for first, end in _runs(pages):
            target = self._pool[pages[first] : pages[first] + end - first]
            target.copy_(host[first:end], non_blocking=True)

    def _starts(self, offsets: Offsets, pages: Sequence[int]) -> Offsets:
        """Elements from the start of the flat pool; ABSENT stays."""
        size = self._pool.shape[1]
        page, inside = np.divmod(np.maximum(offsets, 0), size)
        starts = np.asarray(pages, dtype=np.int64)[page] * size + inside
        return np.where(offsets == ABSENT, ABSENT, starts)

    def _entry(self, laid: LaidOut, pages: Sequence[int]) -> dict[str, SiteRow]:
        def units(offsets: Offsets) -> torch.Tensor:
            starts = self._starts(offsets, pages)
            found = np.where(starts == ABSENT, ABSENT, starts // UNIT)
            return torch.from_numpy(found.astype(np.int32))

        return {
            name: SiteRow(
                a_units=units(site.a),
                ranks=torch.from_numpy(site.ranks),
                **{f"{side}_units": units(column) for side, column in site.columns.items()},
            )
            for name, site in laid.sites.items()
        }

    def _tables(self, laid: LaidOut, pages: Sequence[int]) -> Mapping[str, PagedTable]:
        found: dict[str, dict[str, PagedMatrix]] = {}
        for span, offsets in laid.tables:
            starts = self._starts(np.asarray(offsets, dtype=np.int64), pages)
            found.setdefault(span.site, {})[span.side] = self._paged(span, starts)
        return {
            name: PagedTable(
                **matrices,
                ids=laid.ids[name].to(self._pool.device) if name in laid.ids else None,
            )
            for name, matrices in found.items()
        }

    def _paged(self, span: Span, starts: Offsets) -> PagedMatrix:
        return PagedMatrix(
            rows=sum(block.rows for block in span.blocks),
            width=span.width,
            each=span.blocks[0].rows,
            stride=span.blocks[0].stride,
            offsets=tuple(starts.tolist()),
            where=torch.from_numpy(starts).to(self._pool.device),
        )


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Index ranges of consecutive pages."""
    first = 0
    for i in range(1, len(pages) + 1):
        if i == len(pages) or pages[i] != pages[i - 1] + 1:
            yield first, i
            first = i
