"""Grouped LoRA expand: ``y[t] += B[adapter of t] @ h[t]``, slice by slice, for a mixed batch.

    h     [P, T, slices, R]  float32, from lora_shrink, summed over P in order
    pool  [elements]         the flat page pool; holds every B, scale included (see lora_table)
    y     [T, N]             updated in place, N = columns of all slices; columns contiguous

A site may carry two more vectors per adapter, each in blocks like B: bias and scale, applied as
y = (y + B h + bias) * scale. Rows without an adapter, and slices an adapter leaves alone, keep
their bits.
"""

import torch

from kernels.launch import cdiv, require
from kernels.lora_shrink import project
from kernels.lora_table import ABSENT, B_ROWS, UNIT, LoraSite, b_stride
from kernels.segments import BASE, Segments


def lora_expand(
    h: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    y: torch.Tensor,
    *,
    deterministic: bool = True,
) -> None:
    """Add every row's own adapter to its output.

    Args:
        deterministic: a row is bit-equal whoever shares the batch.
    """
    require(y.shape[1] == site.columns, f"y: {y.shape[1]} columns, the site has {site.columns}")
    require(pool.dtype == y.dtype, f"pool: {pool.dtype} does not match y {y.dtype}")
    for start, length, adapter in segments.runs:
        if adapter != BASE and length:
            rows = slice(start, start + length)
            _expand_rows(h[0, rows], pool, site, adapter, y[rows], deterministic)


def _expand_rows(
    h: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    adapter: int,
    y: torch.Tensor,
    deterministic: bool,
) -> None:
    ranks: list[int] = site.ranks[adapter].tolist()
    units: list[int] = site.b_units[adapter].tolist()
    biases = _row(site.bias_units, adapter)
    scales = _row(site.scale_units, adapter)
    first, blocks = 0, 0
    for index, (rank, columns) in enumerate(zip(ranks, site.slices, strict=True)):
        block = slice(blocks, blocks + cdiv(columns, B_ROWS))
        part = y[:, first : first + columns]
        addends = []
        if rank:
            b = _matrix(pool, units[block], columns, rank)
            addends.append(project(h[:, index, :rank], b, deterministic))
        if biases and biases[block.start] != ABSENT:
            addends.append(_vector(pool, biases[block], columns))
        factor = _vector(pool, scales[block], columns) if scales else None
        _apply(part, addends, factor if scales and scales[block.start] != ABSENT else None)
        first, blocks = first + columns, block.stop


def _apply(y: torch.Tensor, addends: list[torch.Tensor], factor: torch.Tensor | None) -> None:
    if addends and factor is None and len(addends) == 1:
        y.add_(addends[0])
    elif addends or factor is not None:
        wide = y.float()
        for addend in addends:
            wide = wide + addend
        y.copy_(wide if factor is None else wide * factor)


def _row(table: torch.Tensor | None, adapter: int) -> list[int]:
    return [] if table is None else table[adapter].tolist()


def _matrix(pool: torch.Tensor, units: list[int], columns: int, rank: int) -> torch.Tensor:
    """B of one slice, [columns, rank] float32. Blocks that lie end to end are read as one."""
    stride = b_stride(rank)
    step = B_ROWS * stride // UNIT
    if all(unit == units[0] + i * step for i, unit in enumerate(units)):
        return pool.as_strided((columns, rank), (stride, 1), units[0] * UNIT).float()
    heights = [min(B_ROWS, columns - i * B_ROWS) for i in range(len(units))]
    parts = zip(units, heights, strict=True)
    return torch.cat([pool.as_strided((n, rank), (stride, 1), u * UNIT) for u, n in parts]).float()


def _vector(pool: torch.Tensor, units: list[int], columns: int) -> torch.Tensor:
    heights = [min(B_ROWS, columns - i * B_ROWS) for i in range(len(units))]
    parts = [pool[u * UNIT : u * UNIT + n] for u, n in zip(units, heights, strict=True)]
    return torch.cat(parts).float()


def lora_expand_reference(
    h: torch.Tensor, pool: torch.Tensor, site: LoraSite, segments: Segments, y: torch.Tensor
) -> torch.Tensor:
    """A copy of y after the update: one output column of one adapter at a time, in float64."""
    result, hidden = y.clone(), h.double().sum(0)
    table = [c.tolist() for c in (site.block_slice, site.block_row, site.block_rows)]
    for start, length, adapter in segments.runs:
        if adapter == BASE or not length:
            continue
        rows = slice(start, start + length)
        for block, (index, first, count) in enumerate(zip(*table, strict=True)):
            rank = int(site.ranks[adapter, index])
            for n in range(count):
                offset = int(site.b_units[adapter, block]) * UNIT + n * b_stride(rank)
                b = pool[offset : offset + rank].double() if rank else pool[:0].double()
                z = y[rows, first + n].double() + hidden[rows, index, :rank] @ b
                z = z + _element(pool, site.bias_units, adapter, block, n, 0.0)
                z = z * _element(pool, site.scale_units, adapter, block, n, 1.0)
                result[rows, first + n] = z.to(y.dtype)
    return result


def _element(
    pool: torch.Tensor,
    units: torch.Tensor | None,
    adapter: int,
    block: int,
    n: int,
    absent: float,
) -> float:
    unit = ABSENT if units is None else int(units[adapter, block])
    return absent if unit == ABSENT else float(pool[unit * UNIT + n])
