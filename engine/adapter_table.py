"""The device table that finds an adapter's matrices: a ``LoraSite`` per layer and site.

One row per resident adapter. Rows and rank blocks grow by reallocation, so there is no number of
adapters and no largest rank to configure; ``reserve`` makes room beforehand, since graphs that
were captured over the table are captured anew when it moves. A cleared row reads as an adapter of
rank 0. Columns for biases and gains exist from the first adapter on that has some: until then no
kernel looks for them. What few adapters have, changes to embeddings and head, is kept beside in
``outer``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine.models.spec import ModelSpec
from engine.outer import PagedTable
from engine.page_size import ROOMY_RANK
from engine.placement import A_ROWS, SITES
from engine.staging import send
from kernels.lora_codes import LoraCodes
from kernels.lora_table import ABSENT, LoraSite, site_blocks, site_spans

FIRST_ROWS = 8
LayerSites = Mapping[str, LoraSite]


@dataclass(frozen=True, slots=True)
class SiteShape:
    """A site's input width and the output columns of its slices."""

    width: int
    slices: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """B blocks over all slices."""
        return len(site_blocks(self.slices)[0])


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One adapter's entry of a site, for all layers L, on the host. int32."""

    a_units: torch.Tensor  # [L, slices, RB]
    b_units: torch.Tensor  # [L, NB]
    ranks: torch.Tensor  # [L, slices]
    bias_units: torch.Tensor | None = None  # [L, NB]
    gain_units: torch.Tensor | None = None  # [L, NB]


@dataclass(slots=True)
class _Columns:
    """A site's tensors for all layers L; the sites of single layers are views of them."""

    a_units: torch.Tensor  # [L, rows, slices, RB]
    b_units: torch.Tensor  # [L, rows, NB]
    ranks: torch.Tensor  # [L, rows, slices]
    bias_units: torch.Tensor | None  # [L, rows, NB]
    gain_units: torch.Tensor | None  # [L, rows, NB]
    static: list[torch.Tensor] = field(default_factory=list)  # block_slice, _row, _rows, spans


def site_shapes(spec: ModelSpec) -> dict[str, SiteShape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return {
        "qkv": SiteShape(hidden, (spec.query_size, spec.kv_size, spec.kv_size)),
        "o": SiteShape(spec.query_size, (hidden,)),
        "gate_up": SiteShape(hidden, (inner, inner)),
        "down": SiteShape(inner, (hidden,)),
    }


class AdapterTable:
    """Belongs to the engine loop's thread."""

    def __init__(
        self, spec: ModelSpec, device: torch.device, codes: LoraCodes | None = None
    ) -> None:
        """``codes``: what all adapters' A and B are kept as; None: as what the pool holds."""
        self.codes = codes
        self._shapes, self._layers, self._device = site_shapes(spec), spec.num_layers, device
        self.epoch = 0  # changes with every row: what was derived from the table is stale
        self._rows, self._rank_blocks = 0, 0
        self._vectors = False  # whether there are columns for biases and gains
        self._vectored: set[int] = set()  # rows that use them
        self.outer: dict[int, Mapping[str, PagedTable]] = {}
        self._columns: dict[str, _Columns] = {}
        self.arriving: dict[int, torch.cuda.Event] = {}  # rows whose pages are being copied in
        self.sites: Sequence[LayerSites] = ()
        self._resize(FIRST_ROWS, 1)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def rank_capacity(self) -> int:
        return self._rank_blocks * A_ROWS

    def reserve(self, *, rows: int, rank: int) -> None:
        """Make room for so many adapters of so high a rank."""
        blocks = -(-rank // A_ROWS)
        if rows > self._rows or blocks > self._rank_blocks:
            self._resize(max(rows, self._rows), self._room_for(blocks))

    def _room_for(self, blocks: int) -> int:
        """Few sizes: kernels are compiled for each."""
        if blocks <= self._rank_blocks:
            return self._rank_blocks
        return max(blocks, ROOMY_RANK // A_ROWS) if blocks > 1 else 1

    def await_rows(self, rows: Iterable[int]) -> None:
        """Work launched from now on finds these adapters' pages filled."""
        for row in self.arriving.keys() & set(rows):
            torch.cuda.current_stream(self._device).wait_event(self.arriving.pop(row))

    def plain(self, rows: Iterable[int]) -> bool:
        """These adapters are A and B of linear layers, and nothing else of those."""
        return self._vectored.isdisjoint(rows)

    def write(
        self,
        row: int,
        entry: Mapping[str, SiteRow],
        outer: Mapping[str, PagedTable] | None = None,
    ) -> None:
        """Set a row, growing the table as needed."""
        self.clear(row)
        blocks = max(site.a_units.shape[2] for site in entry.values())
        vectored = any(site.bias_units is not None for site in entry.values())
        if row >= self._rows or blocks > self._rank_blocks or vectored > self._vectors:
            self._vectors = self._vectors or vectored
            rows = self._rows if row < self._rows else max(row + 1, 2 * self._rows)
            self._resize(rows, self._room_for(blocks))
        there = self._sent(entry)
        for name in entry:
            columns, a_units = self._columns[name], there[f"{name} a"]
            columns.a_units[:, row, :, a_units.shape[2] :] = ABSENT
            columns.a_units[:, row, :, : a_units.shape[2]] = a_units
            columns.b_units[:, row] = there[f"{name} b"]
            columns.ranks[:, row] = there[f"{name} ranks"]
            for part, column in (("bias", columns.bias_units), ("gain", columns.gain_units)):
                if column is not None and (units := there.get(f"{name} {part}")) is not None:
                    column[:, row] = units
        if vectored:
            self._vectored.add(row)
        if outer:
            self.outer[row] = outer

    def _sent(self, entry: Mapping[str, SiteRow]) -> dict[str, torch.Tensor]:
        arrays = {}
        for name, site in entry.items():
            parts = {
                "a": site.a_units,
                "b": site.b_units,
                "ranks": site.ranks,
                "bias": site.bias_units,
                "gain": site.gain_units,
            }
            arrays.update(
                {f"{name} {part}": t.numpy() for part, t in parts.items() if t is not None}
            )
        return send(arrays, self._device)

    def clear(self, row: int) -> None:
        self.epoch += 1
        self.outer.pop(row, None)
        if row < self._rows:
            for columns in self._columns.values():
                columns.ranks[:, row] = 0
                if row in self._vectored and columns.bias_units is not None:
                    assert columns.gain_units is not None, "both or neither"
                    columns.bias_units[:, row] = columns.gain_units[:, row] = ABSENT
        self._vectored.discard(row)

    def _resize(self, rows: int, rank_blocks: int) -> None:
        self._rows, self._rank_blocks = rows, rank_blocks
        self._columns = {name: self._grown(name) for name in SITES}
        self.sites = [
            {name: self._view(name, layer) for name in SITES} for layer in range(self._layers)
        ]

    def _grown(self, name: str) -> _Columns:
        shape, lead = self._shapes[name], (self._layers, self._rows)
        slices = len(shape.slices)
        columns = _Columns(
            a_units=self._full(*lead, slices, self._rank_blocks, fill=ABSENT),
            b_units=self._full(*lead, shape.blocks, fill=ABSENT),
            ranks=self._full(*lead, slices, fill=0),
            bias_units=self._full(*lead, shape.blocks, fill=ABSENT) if self._vectors else None,
            gain_units=self._full(*lead, shape.blocks, fill=ABSENT) if self._vectors else None,
            static=[
                torch.tensor(column, dtype=torch.int32, device=self._device)
                for column in (*site_blocks(shape.slices), site_spans(shape.slices))
            ],
        )
        if (old := self._columns.get(name)) is not None:
            rows, blocks = old.a_units.shape[1], old.a_units.shape[3]
            columns.a_units[:, :rows, :, :blocks] = old.a_units
            columns.b_units[:, :rows] = old.b_units
            columns.ranks[:, :rows] = old.ranks
            for column, before in (
                (columns.bias_units, old.bias_units),
                (columns.gain_units, old.gain_units),
            ):
                if column is not None and before is not None:
                    column[:, :rows] = before
        return columns

    def _view(self, name: str, layer: int) -> LoraSite:
        shape, columns = self._shapes[name], self._columns[name]
        block_slice, block_row, block_rows, spans = columns.static
        return LoraSite(
            width=shape.width,
            slices=shape.slices,
            a_units=columns.a_units[layer],
            b_units=columns.b_units[layer],
            ranks=columns.ranks[layer],
            block_slice=block_slice,
            block_row=block_row,
            block_rows=block_rows,
            spans=spans,
            codes=self.codes,
            bias_units=None if columns.bias_units is None else columns.bias_units[layer],
            scale_units=None if columns.gain_units is None else columns.gain_units[layer],
        )

    def _full(self, *shape: int, fill: int) -> torch.Tensor:
        return torch.full(shape, fill, dtype=torch.int32, device=self._device)
