"""On a CPU: all adapters of a batch as one pair of matrices per site, in float32.

For a handful of rows the cost of LoRA on a CPU is the number of calls, not the arithmetic. So the
A of every adapter and slice are stacked, [S, K], and the Bᵀ too, [S, N], each in the columns of its
own slice; h = x Aᵀ is computed for all rows at once, the columns of other adapters are set to exact
zeros, and one product with Bᵀ gives every row its own adapter's addend.

A stack is kept until residency changes, and serves any batch whose adapters it has. Batches whose
adapters have biases or gains, whose stack would be large, or whose stack has a value that is not
finite (0 times it would reach other rows), take the kernels' path instead. So does deterministic
mode: here a row's rounding depends on how many ranks share the product.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from engine.adapter_table import AdapterTable, LayerSites
from kernels.lora_codes import from_block
from kernels.lora_table import A_HEAD, A_ROWS, B_HEAD, UNIT, LoraSite, a_stride, b_stride
from kernels.segments import BASE, Segments

MAX_BYTES = 128 << 20  # of one stack
MAX_STACKS = 4


@dataclass(frozen=True, slots=True)
class _Site:
    a: torch.Tensor  # [S, K]
    b: torch.Tensor  # [S, N]
    owner: torch.Tensor  # [S] int64, the table row each column belongs to


@dataclass(frozen=True, slots=True)
class Stack:
    adapters: frozenset[int]  # rows of the table
    layers: Sequence[dict[str, _Site]]


@dataclass(frozen=True, slots=True)
class StackedRows:
    """One pass over a stack: which adapter each row has."""

    stack: Stack
    adapter: torch.Tensor  # [T, 1] int64
    _foreign: dict[int, torch.Tensor] = field(default_factory=dict)  # by the owner's identity

    def add(self, x: torch.Tensor, y: torch.Tensor, layer: int, name: str) -> None:
        """y += x Aᵀ Bᵀ, each row with its own adapter's A and B."""
        site = self.stack.layers[layer].get(name)
        if site is None:
            return
        h = F.linear(x.float(), site.a).masked_fill_(self._foreign_of(site.owner), 0.0)
        y.copy_(torch.addmm(y.float(), h, site.b))

    def _foreign_of(self, owner: torch.Tensor) -> torch.Tensor:
        """[T, S]: columns that are not the row's own. Layers of equal ranks share the answer."""
        key = id(owner)
        if key not in self._foreign:
            self._foreign[key] = self.adapter != owner
        return self._foreign[key]


class Stacks:
    """Builds stacks and keeps the latest. Belongs to the engine loop's thread."""

    def __init__(self, table: AdapterTable, pool: torch.Tensor) -> None:
        self._table, self._pool, self._epoch = table, pool, table.epoch
        self._kept: OrderedDict[frozenset[int], Stack | None] = OrderedDict()

    def rows(self, segments: Segments) -> StackedRows | None:
        """The batch over a stack, or None when it is better served by the kernels."""
        adapters = frozenset(adapter for _, _, adapter in segments.runs if adapter != BASE)
        if self._epoch != self._table.epoch:
            self._kept.clear()
            self._epoch = self._table.epoch
        stack = self._find(adapters) if self._table.plain(adapters) else None
        if stack is None:
            return None
        column = segments.adapter.long().repeat_interleave(segments.length.long())
        return StackedRows(stack, column.unsqueeze(1))

    def _find(self, adapters: frozenset[int]) -> Stack | None:
        for kept in self._kept:
            if adapters <= kept:
                self._kept.move_to_end(kept)
                return self._kept[kept]
        if _bytes(self._table.sites, adapters) > MAX_BYTES:
            return None
        self._kept[adapters] = _build(self._pool, self._table.sites, adapters)
        if len(self._kept) > MAX_STACKS:
            self._kept.popitem(last=False)
        return self._kept[adapters]


def _bytes(sites: Sequence[LayerSites], adapters: frozenset[int]) -> int:
    rows, total = sorted(adapters), 0
    for layer in sites:
        for site in layer.values():
            total += int(site.ranks[rows].sum()) * (site.width + site.columns) * 4
    return total


def _build(
    pool: torch.Tensor, sites: Sequence[LayerSites], adapters: frozenset[int]
) -> Stack | None:
    """None when a matrix is not finite."""
    owners: dict[tuple[int, ...], torch.Tensor] = {}  # one tensor for equal layouts
    layers = []
    for layer in sites:
        built = {
            name: _stack_site(pool, site, sorted(adapters), owners) for name, site in layer.items()
        }
        stacked = {name: site for name, site in built.items() if site is not None}
        if not all(_finite(site.a) and _finite(site.b) for site in stacked.values()):
            return None
        layers.append(stacked)
    return Stack(adapters, layers)


def _stack_site(
    pool: torch.Tensor,
    site: LoraSite,
    adapters: Sequence[int],
    owners: dict[tuple[int, ...], torch.Tensor],
) -> _Site | None:
    ranks = site.ranks.tolist()
    columns = tuple(adapter for adapter in adapters for rank in ranks[adapter] for _ in range(rank))
    if not columns:
        return None
    a, b = torch.empty(len(columns), site.width), torch.zeros(len(columns), site.columns)
    a_units, b_units, at = site.a_units.tolist(), site.b_units.tolist(), 0
    blocks = list(
        zip(
            site.block_slice.tolist(),
            site.block_row.tolist(),
            site.block_rows.tolist(),
            strict=True,
        )
    )
    for adapter in adapters:
        for number, rank in enumerate(ranks[adapter]):
            for i in range(-(-rank // A_ROWS)):
                rows = min(A_ROWS, rank - A_ROWS * i)
                shape = rows, site.width, a_stride(site.width)
                unit = a_units[adapter][number][i]
                a[at + A_ROWS * i : at + A_ROWS * i + rows] = _block(
                    pool, site, unit, A_HEAD, shape
                )
            for block, (owner, first, rows) in enumerate(blocks):
                if rank and owner == number:
                    shape = rows, rank, b_stride(rank)
                    unit = b_units[adapter][block]
                    b[at : at + rank, first : first + rows] = _block(
                        pool, site, unit, B_HEAD, shape
                    ).t()
            at += rank
    owner = owners.setdefault(columns, torch.tensor(columns))
    return _Site(a, b, owner)


def _block(
    pool: torch.Tensor, site: LoraSite, unit: int, head: int, shape: tuple[int, int, int]
) -> torch.Tensor:
    """[rows, width] of the block at a unit, of (rows, width, stride)."""
    rows, width, stride = shape
    if site.codes is not None:
        return from_block(pool, site.codes, unit * UNIT, head * UNIT, shape)
    return pool.as_strided((rows, width), (stride, 1), unit * UNIT)


def _finite(matrix: torch.Tensor) -> bool:
    return all(bool(bound.isfinite()) for bound in matrix.aminmax())
