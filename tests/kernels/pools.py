"""Page pools that hold keys, values and adapters, for the kernels that read them."""

from dataclasses import dataclass, replace

import torch

from kernels.e4m3 import to_e4m3
from kernels.launch import cdiv, round_up
from kernels.lora_codes import LoraCodes
from kernels.lora_table import (
    A_HEAD,
    A_ROWS,
    B_HEAD,
    B_ROWS,
    UNIT,
    LoraSite,
    a_stride,
    b_stride,
    empty_site,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass
class Contexts:
    """Sequences scattered over a pool whose unused memory is NaN."""

    kv: torch.Tensor  # [P, 2, KVH, PS, D], a view of layer 1 of 2
    page_table: torch.Tensor  # [B, MAXP] int32; -1 past a sequence's pages
    lengths: torch.Tensor  # [B] int32
    magnitudes: torch.Tensor | None = None  # [P, 2, KVH, PS], of a kv in 8 bits

    def narrow(self) -> "Contexts":
        """The same in e4m3, codes and magnitudes in pages of one memory; layer 1 of 2."""
        P, _, KVH, PS, D = self.kv.shape
        codes, sizes = to_e4m3(self.kv.float().cpu())  # NaN stays NaN
        tile, tiles = PS * D, 2 * 2 * KVH
        width = round_up(tiles * (tile + 4 * PS), 4 * tile)
        pool = torch.full((P, width), 0x7F, dtype=torch.uint8, device=self.kv.device)
        kv = pool[:, : tiles * tile].view(torch.float8_e4m3fn).view(P, 2, 2, KVH, PS, D)[:, 1]
        beside = pool[:, tiles * tile : tiles * (tile + 4 * PS)].view(torch.float32)
        magnitudes = beside.view(P, 2, 2, KVH, PS)[:, 1]
        kv.copy_(codes)
        magnitudes.copy_(sizes)
        return Contexts(kv, self.page_table, self.lengths, magnitudes)


def scattered(
    lengths: list[int], *, heads: int, head_dim: int, page: int, dtype: torch.dtype, device: str
) -> Contexts:
    counts = [cdiv(length, page) for length in lengths]
    pages = sum(counts) + 2
    pool = torch.full((pages, 2 * 2 * heads * page * head_dim), float("nan"), dtype=dtype)
    kv = pool.view(pages, 2, 2, heads, page, head_dim)[:, 1]
    order = torch.randperm(pages, generator=generator()).tolist()
    table = torch.full((len(lengths), max([*counts, 1]) + 1), -1, dtype=torch.int32)
    for b, length in enumerate(lengths):
        values = torch.randn(2, heads, length, head_dim, generator=generator(b)).to(dtype)
        for i in range(counts[b]):
            table[b, i] = order.pop()
            part = values[:, :, i * page : (i + 1) * page]
            kv[table[b, i], :, :, : part.shape[2]] = part
    return Contexts(
        kv=pool.to(device).view(pages, 2, 2, heads, page, head_dim)[:, 1],
        page_table=table.to(device),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
    )


@dataclass
class Adapters:
    """A pool with the adapters of one site in its pages."""

    pool: torch.Tensor  # [elements]
    site: LoraSite


def with_adapters(
    ranks: list[tuple[int, ...]],
    *,
    width: int,
    slices: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    vectors: bool = False,
    scale: float = 0.1,
    codes: LoraCodes | None = None,
) -> Adapters:
    """Adapters of these ranks per slice, laid into pages in the order A blocks, B blocks."""
    largest = max(max(r) for r in ranks)
    site = empty_site(width, slices, adapters=len(ranks), rank=max(largest, 1), device="cpu")
    site = replace(site, codes=codes)
    if vectors:
        absent = torch.full_like(site.b_units, -1)
        site = replace(site, bias_units=absent.clone(), scale_units=absent.clone())
    page = round_up(max(A_ROWS * a_stride(width), B_ROWS * b_stride(largest)) + 5 * UNIT, UNIT)
    writer = _Writer(page, dtype, codes)
    for adapter, slice_ranks in enumerate(ranks):
        _write_adapter(writer, site, adapter, slice_ranks, scale)
    moved = {
        name: value.to(device)
        for name in LoraSite.__slots__
        if isinstance(value := getattr(site, name), torch.Tensor)
    }
    return Adapters(writer.pool().to(device), replace(site, **moved))


def _write_adapter(
    writer: "_Writer", site: LoraSite, adapter: int, ranks: tuple[int, ...], scale: float
) -> None:
    random = generator(100 + adapter)
    for index, rank in enumerate(ranks):
        site.ranks[adapter, index] = rank
        for block in range(cdiv(rank, A_ROWS)):
            rows = min(A_ROWS, rank - block * A_ROWS)
            a = torch.zeros(rows, a_stride(site.width))
            a[:, : site.width] = torch.randn(rows, site.width, generator=random) * scale
            site.a_units[adapter, index, block] = writer.add_rows(a, A_HEAD)
    for block, (index, rows) in enumerate(zip(site.block_slice, site.block_rows, strict=True)):
        rank = ranks[index]
        if rank:
            b = torch.zeros(int(rows), b_stride(rank))
            b[:, :rank] = torch.randn(int(rows), rank, generator=random) * scale
            site.b_units[adapter, block] = writer.add_rows(b, B_HEAD)
        if site.bias_units is not None and site.scale_units is not None and adapter % 2 == 0:
            site.bias_units[adapter, block] = writer.add(torch.randn(int(rows), generator=random))
            site.scale_units[adapter, block] = writer.add(torch.rand(int(rows), generator=random))


class _Writer:
    """Puts blocks one after another, none across a page; what lies between is NaN."""

    def __init__(self, page: int, dtype: torch.dtype, codes: LoraCodes | None) -> None:
        self._page, self._dtype, self._codes = page, dtype, codes
        self._blocks: list[tuple[int, torch.Tensor]] = []
        self._end = 0

    def add(self, block: torch.Tensor) -> int:
        size = round_up(block.numel(), UNIT)
        if self._end % self._page + size > self._page:
            self._end = round_up(self._end, self._page)
        offset = self._end
        self._blocks.append((offset, block))
        self._end += size
        return offset // UNIT

    def add_rows(self, rows: torch.Tensor, head: int) -> int:
        """A block of A or B; in codes, behind so many units with its magnitudes."""
        if self._codes is None:
            return self.add(rows)
        values = rows.to(self._dtype)
        sizes = torch.full((head * UNIT,), float("nan"), dtype=self._dtype)
        sizes[: len(rows)] = values.abs().amax(1)
        stored = in_codes(values, self._codes).flatten()
        item = self._dtype.itemsize
        stored = torch.cat((stored, stored.new_full((-len(stored) % item,), 0x7F)))
        return self.add(torch.cat((sizes, stored.view(self._dtype))))

    def pool(self) -> torch.Tensor:
        elements = round_up(self._end, self._page)
        flat = torch.full((elements,), float("nan"), dtype=self._dtype)
        for offset, block in self._blocks:
            flat[offset : offset + block.numel()] = block.flatten().to(self._dtype)
        return flat


def in_codes(rows: torch.Tensor, codes: LoraCodes) -> torch.Tensor:
    """uint8 [rows, width], each row relative to its largest absolute value."""
    if codes is LoraCodes.E4M3:
        return to_e4m3(rows)[0].view(torch.uint8)
    wide = rows.float()
    sizes = wide.abs().amax(1, keepdim=True).clamp(min=1e-30)
    return (wide / sizes * 127).round().to(torch.int8).view(torch.uint8)
