"""Grouped LoRA expand: ``y[t] += B[adapter of t] @ h[t]``, slice by slice, for a mixed batch.

    h     [P, T, slices, R]  float32, from lora_shrink, summed over P in order
    pool  [elements]         the flat page pool; holds every B, scale included (see lora_table)
    y     [T, N]             updated in place, N = columns of all slices; columns contiguous

A site may carry two more vectors per adapter, each in blocks like B: gain and bias, applied as
y = (y + B h) * (1 + gain) + bias. The gain is DoRA's factor less one: a small number, which a
16-bit type holds finely where it would round the factor itself. Rows without an adapter, and slices
an adapter leaves alone, keep their bits.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import cdiv, compute_type, require, use_triton
from kernels.lora_shrink import project
from kernels.lora_table import ABSENT, B_ROWS, UNIT, LoraSite, b_stride
from kernels.segments import BASE, Segments
from kernels.tuning import choose


@triton.jit
def _expand_kernel(  # type: ignore[no-untyped-def]
    h_ptr,
    pool_ptr,
    y_ptr,
    start_ptr,
    length_ptr,
    adapter_ptr,
    units_ptr,
    ranks_ptr,
    bias_units_ptr,
    scale_units_ptr,
    block_slice_ptr,
    block_row_ptr,
    block_rows_ptr,
    T,
    tiles,
    stride_y,
    PLANES: tl.constexpr,
    UNIT: tl.constexpr,
    SLICES: tl.constexpr,
    R: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    CT: tl.constexpr,
):
    """BLOCK_T rows of a segment by one block of output columns, over all of its ranks."""
    block = tl.program_id(0)
    segment = tl.program_id(1) // tiles
    first = tl.program_id(1) % tiles * BLOCK_T
    length = tl.load(length_ptr + segment)
    adapter = tl.load(adapter_ptr + segment).to(tl.int64)
    if (first < length) & (adapter >= 0):
        index = tl.load(block_slice_ptr + block)
        rank = tl.load(ranks_ptr + adapter * SLICES + index)
        entry = adapter * tl.num_programs(0) + block
        bias = -1
        scale = -1
        if HAS_BIAS:
            bias = tl.load(bias_units_ptr + entry)
        if HAS_SCALE:
            scale = tl.load(scale_units_ptr + entry)
        if (rank > 0) | (bias >= 0) | (scale >= 0):
            t = first + tl.arange(0, BLOCK_T)
            n = tl.arange(0, BLOCK_N)
            r = tl.arange(0, BLOCK_R)
            row = (tl.load(start_ptr + segment) + t).to(tl.int64)
            columns = tl.load(block_rows_ptr + block)
            live = t < length
            inside = n < columns
            acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
            b_unit = tl.load(units_ptr + entry).to(tl.int64)
            stride_b = tl.multiple_of(tl.cdiv(rank, 8) * 8, 8)
            at_h = h_ptr + (row * SLICES + index)[:, None] * R + r[None, :]
            at_b = pool_ptr + b_unit * UNIT + n[None, :] * stride_b + r[:, None]
            for r0 in range(0, rank, BLOCK_R):
                mine = r0 + r < rank
                h = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
                for plane in range(PLANES):
                    skip = tl.cast(plane, tl.int64) * T * (SLICES * R)
                    h += tl.load(at_h + skip + r0, mask=live[:, None] & mine[None, :], other=0.0)
                b = tl.load(
                    at_b + r0,
                    mask=mine[:, None] & inside[None, :],
                    other=0.0,
                    eviction_policy="evict_first",
                )
                acc = tl.dot(h.to(CT), b.to(CT), acc, input_precision="ieee")
            column = tl.load(block_row_ptr + block) + n
            at_y = y_ptr + row[:, None] * stride_y + column[None, :]
            both = live[:, None] & inside[None, :]
            y = tl.load(at_y, mask=both, other=0.0).to(tl.float32) + acc
            if scale >= 0:
                at = pool_ptr + tl.cast(scale, tl.int64) * UNIT + n
                y *= 1.0 + tl.load(at, mask=inside, other=0.0).to(tl.float32)[None, :]
            if bias >= 0:
                at = pool_ptr + tl.cast(bias, tl.int64) * UNIT + n
                y += tl.load(at, mask=inside, other=0.0).to(tl.float32)[None, :]
            tl.store(at_y, y.to(y_ptr.dtype.element_ty), mask=both)


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
    require(y.stride(1) == 1, "y: columns must be contiguous")
    if use_triton(y):
        _launch(h, pool, site, segments, y)
        return
    for start, length, adapter in segments.runs:
        if adapter != BASE and length:
            rows = slice(start, start + length)
            _expand_rows(h[0, rows], pool, site, adapter, y[rows], deterministic)


def _launch(
    h: torch.Tensor, pool: torch.Tensor, site: LoraSite, segments: Segments, y: torch.Tensor
) -> None:
    planes, T, slices, R = h.shape
    G = segments.start.numel()
    if T == 0 or G == 0 or segments.longest == 0:
        return
    config = choose("lora_expand", segments.longest, y.device)
    tiles = cdiv(segments.longest, config.rows)
    absent = site.b_units  # a pointer that is not read
    _expand_kernel[(site.block_slice.numel(), G * tiles)](
        h,
        pool,
        y,
        segments.start,
        segments.length,
        segments.adapter,
        site.b_units,
        site.ranks,
        absent if site.bias_units is None else site.bias_units,
        absent if site.scale_units is None else site.scale_units,
        site.block_slice,
        site.block_row,
        site.block_rows,
        T,
        tiles,
        y.stride(0),
        PLANES=planes,
        UNIT=UNIT,
        SLICES=slices,
        R=R,
        HAS_BIAS=site.bias_units is not None,
        HAS_SCALE=site.scale_units is not None,
        BLOCK_T=config.rows,
        BLOCK_N=B_ROWS,
        BLOCK_R=config.depth,
        CT=compute_type(y.dtype),
        num_warps=config.warps,
        num_stages=config.stages,
    )


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
        addend = gain = bias = None
        if rank:
            b = _matrix(pool, units[block], columns, rank)
            addend = project(h[:, index, :rank], b, deterministic)
        if scales and scales[block.start] != ABSENT:
            gain = _vector(pool, scales[block], columns)
        if biases and biases[block.start] != ABSENT:
            bias = _vector(pool, biases[block], columns)
        _apply(y[:, first : first + columns], addend, gain, bias)
        first, blocks = first + columns, block.stop


def _apply(
    y: torch.Tensor,
    addend: torch.Tensor | None,
    gain: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    if gain is None and bias is None:
        if addend is not None:
            y.add_(addend)
        return
    wide = y.float()
    wide = wide if addend is None else wide + addend
    wide = wide if gain is None else wide * (1 + gain)
    y.copy_(wide if bias is None else wide + bias)


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
                z = z * (1 + _element(pool, site.scale_units, adapter, block, n))
                z = z + _element(pool, site.bias_units, adapter, block, n)
                result[rows, first + n] = z.to(y.dtype)
    return result


def _element(
    pool: torch.Tensor,
    units: torch.Tensor | None,
    adapter: int,
    block: int,
    n: int,
) -> float:
    unit = ABSENT if units is None else int(units[adapter, block])
    return 0.0 if unit == ABSENT else float(pool[unit * UNIT + n])
