"""Grouped LoRA expand: ``y[t] += B[adapter of t] @ h[t]``, slice by slice, for a mixed batch.

    h     [P, T, slices, R]  float32, from lora_shrink, summed over P in order
    pool  [elements]         the flat page pool; holds every B, scale included (see lora_table),
                             also those of 8 bits (``lora_codes``), whose magnitudes scale B h
    y     [T, N]             updated in place, N = columns of all slices; columns contiguous

A site may carry two more vectors per adapter, each in blocks like B: gain and bias, applied as
y = (y + B h) * (1 + gain) + bias. The gain is DoRA's factor less one: a small number, which a
16-bit type holds finely where it would round the factor itself. Rows without an adapter, and slices
an adapter leaves alone, keep their bits.

``lora_addend`` writes B h + bias by itself, zeros where there is none: it needs no product of the
base, so both can run at once, and whoever reads the base's addends adds one more.
"""

from math import gcd

import torch
import triton
import triton.language as tl

from kernels.launch import (
    cdiv,
    chained,
    compute_type,
    multiprocessors,
    require,
    use_triton,
)
from kernels.lora_codes import bytes_of, code_values, coded, from_block, reference_row
from kernels.lora_shrink import HANDFUL, programs, project, tile_bucket
from kernels.lora_table import ABSENT, B_HEAD, B_ROWS, SPAN, UNIT, LoraSite, b_stride
from kernels.segments import BASE, Segments
from kernels.signals import await_count
from kernels.tuning import choose

_MANY = 2  # programs per multiprocessor, from which one takes all tiles of a span
_SHORT = 16  # rows of a tile, up to which it may


@triton.jit(
    do_not_specialize=["T", "tiles", "BLOCKS", "SLICES", "PROGRAMS"],
    do_not_specialize_on_alignment=[
        "start_ptr",
        "length_ptr",
        "adapter_ptr",
        "units_ptr",
        "ranks_ptr",
        "bias_units_ptr",
        "scale_units_ptr",
    ],
)
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
    spans_ptr,
    T,
    tiles,
    stride_y,
    BLOCKS,
    SLICES,
    R,
    magnitudes_ptr,
    signals_ptr,
    PROGRAMS,
    PLANES: tl.constexpr,
    UNIT: tl.constexpr,
    ITEM: tl.constexpr,
    HEAD: tl.constexpr,
    LARGEST: tl.constexpr,
    ADD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    B_ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    EACH: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    CT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """BLOCK_T rows of a segment by EACH tiles of BLOCK_N output columns, over all of their ranks.

    B is asked for a tile ahead, and before h: where the kernel is chained, h is still being made.
    What a site looks like is no constant: one kernel serves all of a model's. Where B is codes,
    ``pool_ptr`` points at bytes and ``magnitudes_ptr`` at the same memory in its own type.
    """
    if CHAINED and signals_ptr is not None:
        tl.extra.cuda.gdc_launch_dependents()
    segment = tl.program_id(1) // tiles
    first = tl.program_id(1) % tiles * BLOCK_T
    length = tl.load(length_ptr + segment)
    adapter = tl.load(adapter_ptr + segment).to(tl.int64)
    start = tl.load(start_ptr + segment).to(tl.int64)
    span = spans_ptr + tl.program_id(0) // PIECES * 4
    index = tl.load(span)
    block = tl.load(span + 1)
    column = tl.multiple_of(tl.load(span + 2), ALIGN)
    columns = tl.multiple_of(tl.load(span + 3), ALIGN)
    tile = tl.program_id(0) % PIECES * EACH
    if (first < length) & (tile * BLOCK_N < columns):
        known = tl.maximum(adapter, 0)
        rank = tl.load(ranks_ptr + known * SLICES + index)
        entry = known * BLOCKS + block
        n = tl.arange(0, BLOCK_N)
        r = tl.arange(0, BLOCK_R)
        t = first + tl.arange(0, BLOCK_T)
        stride_b = tl.multiple_of(tl.cdiv(rank, 8) * 8, 8)
        last = tl.minimum(tile + EACH, tl.cdiv(columns, BLOCK_N))
        at_h = h_ptr + (start * SLICES + index) * R
        at_h += (t * (SLICES * R))[:, None] + r[None, :]
        units = units_ptr + entry
        some = (adapter >= 0) & (rank > 0)
        b = _load_b(
            pool_ptr, units, tile, r, stride_b, n, some, columns, UNIT, HEAD, B_ROWS, BLOCK_N
        )  # fmt: skip
        vectors_ptr = pool_ptr
        if magnitudes_ptr is not None:
            vectors_ptr = magnitudes_ptr
            size = _load_sizes(
                magnitudes_ptr, units, tile, n, some, columns, UNIT // ITEM, B_ROWS, BLOCK_N
            )
        if signals_ptr is not None:
            await_count(signals_ptr + 1, PROGRAMS)
        elif CHAINED:
            tl.extra.cuda.gdc_wait()
        h = _load_h(at_h, t, length, some, T, SLICES, R, PLANES, BLOCK_T, BLOCK_R).to(CT)
        for i in tl.static_range(EACH):
            at = tile + i
            ahead = b
            if i + 1 < EACH:
                ahead = _load_b(
                    pool_ptr, units, at + 1, r, stride_b, n, some & (at + 1 < last), columns,
                    UNIT, HEAD, B_ROWS, BLOCK_N,
                )  # fmt: skip
            if magnitudes_ptr is not None:
                size_ahead = size
                if i + 1 < EACH:
                    size_ahead = _load_sizes(
                        magnitudes_ptr, units, at + 1, n, some & (at + 1 < last), columns,
                        UNIT // ITEM, B_ROWS, BLOCK_N,
                    )  # fmt: skip
            if at < last:
                m = at * BLOCK_N + n
                acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
                bias = -1
                scale = -1
                if adapter >= 0:
                    acc = tl.dot(h, code_values(b, CT), acc, input_precision="ieee")
                    for r0 in range(BLOCK_R, rank, BLOCK_R):
                        more = _load_h(
                            at_h + r0, t, length, some, T, SLICES, R, PLANES, BLOCK_T, BLOCK_R
                        )
                        b = _load_b(
                            pool_ptr, units, at, r0 + r, stride_b, n, some, columns,
                            UNIT, HEAD, B_ROWS, BLOCK_N,
                        )  # fmt: skip
                        acc = tl.dot(more.to(CT), code_values(b, CT), acc, input_precision="ieee")
                    if magnitudes_ptr is not None:
                        acc *= (size * (1.0 / LARGEST))[None, :]
                    if HAS_BIAS:
                        bias = tl.load(bias_units_ptr + entry)
                    if HAS_SCALE:
                        scale = tl.load(scale_units_ptr + entry)
                if (not ADD) | some | (bias >= 0) | (scale >= 0):
                    inside = m < columns
                    both = (t < length)[:, None] & inside[None, :]
                    at_y = y_ptr + start * stride_y + column + at * BLOCK_N
                    at_y += (t * stride_y)[:, None] + n[None, :]  # 32 bits reach over a segment
                    if ADD:
                        acc += tl.load(at_y, mask=both, other=0.0).to(tl.float32)
                    if scale >= 0:
                        of = _vector_at(
                            vectors_ptr, scale_units_ptr + entry, m, inside, UNIT // ITEM, B_ROWS
                        )
                        acc *= 1.0 + tl.load(of, mask=inside, other=0.0).to(tl.float32)[None, :]
                    if bias >= 0:
                        of = _vector_at(
                            vectors_ptr, bias_units_ptr + entry, m, inside, UNIT // ITEM, B_ROWS
                        )
                        acc += tl.load(of, mask=inside, other=0.0).to(tl.float32)[None, :]
                    tl.store(at_y, acc.to(y_ptr.dtype.element_ty), mask=both)
            b = ahead
            if magnitudes_ptr is not None:
                size = size_ahead
    if CHAINED and signals_ptr is not None:
        # One program stays so that whoever waits for this kernel waits for the one before as well;
        # the others make room.
        nth = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if nth + 1 == tl.num_programs(0) * tl.num_programs(1):
            tl.extra.cuda.gdc_wait()


@triton.jit
def _load_h(  # type: ignore[no-untyped-def]
    at, t, length, some, T, SLICES, R,
    PLANES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The sum over the planes, [BLOCK_T, BLOCK_R]. Past an adapter's rank lie zeros."""
    h = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    for plane in tl.static_range(PLANES):
        skip = tl.cast(plane, tl.int64) * T * (SLICES * R)
        # From the second-level cache: the first may hold lines of before they were awaited.
        h += tl.load(
            at + skip, mask=((t < length) & some)[:, None], other=0.0, cache_modifier=".cg"
        )
    return h


@triton.jit
def _load_b(  # type: ignore[no-untyped-def]
    pool_ptr, units_ptr, tile, r, stride_b, n, some, columns,
    UNIT: tl.constexpr, HEAD: tl.constexpr, B_ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of B, [ranks, BLOCK_N]. The padding of a row is there, and zero."""
    m = tile * BLOCK_N + n
    inside = (m < columns) & some
    unit = tl.load(units_ptr + m // B_ROWS, mask=inside, other=0).to(tl.int64)
    if HEAD > 0:
        unit += HEAD
    at = pool_ptr + (unit * UNIT + n % B_ROWS * stride_b)[None, :] + r[:, None]
    mask = (r < stride_b)[:, None] & inside[None, :]
    return tl.load(at, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _load_sizes(  # type: ignore[no-untyped-def]
    magnitudes_ptr, units_ptr, tile, n, some, columns,
    UNIT: tl.constexpr, B_ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The magnitudes of a tile of B in codes, [BLOCK_N] float32."""
    m = tile * BLOCK_N + n
    inside = (m < columns) & some
    at = _vector_at(magnitudes_ptr, units_ptr, m, inside, UNIT, B_ROWS)
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _vector_at(  # type: ignore[no-untyped-def]
    pool_ptr, units_ptr, n, inside, UNIT: tl.constexpr, B_ROWS: tl.constexpr
):
    """Where the elements of a vector lie whose blocks these units are."""
    unit = tl.load(units_ptr + n // B_ROWS, mask=inside, other=0).to(tl.int64)
    return pool_ptr + unit * UNIT + n % B_ROWS


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
    _check(pool, site, y)
    if use_triton(y):
        _launch(h, pool, site, segments, y, tile_bucket(segments, deterministic), add=True)
        return
    for start, length, adapter in segments.runs:
        if adapter != BASE and length:
            rows = slice(start, start + length)
            _expand_rows(h[0, rows], pool, site, adapter, y[rows], deterministic)


def lora_addend(
    h: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    out: torch.Tensor,
    *,
    signals: torch.Tensor | None = None,
) -> None:
    """Write what every row's own adapter adds into out [T, N], of the type of the pool.

    Only rows of segments are written. The site must have no gains: they scale the base's product.

    Args:
        signals: what ``lora_shrink`` was given; the base's product is launched between the two.
    """
    _check(pool, site, out)
    require(site.scale_units is None, "site: gains scale the whole output, not an addend")
    if use_triton(out):
        _launch(h, pool, site, segments, out, segments.longest, add=False, signals=signals)
        return
    lora_expand(h, pool, site, segments, out.zero_())


def _check(pool: torch.Tensor, site: LoraSite, y: torch.Tensor) -> None:
    require(y.shape[1] == site.columns, f"y: {y.shape[1]} columns, the site has {site.columns}")
    require(pool.dtype == y.dtype, f"pool: {pool.dtype} does not match y {y.dtype}")
    require(y.stride(1) == 1, "y: columns must be contiguous")


def _launch(
    h: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    y: torch.Tensor,
    bucket: int,
    *,
    add: bool,
    signals: torch.Tensor | None = None,
) -> None:
    planes, T, slices, R = h.shape
    G = segments.start.numel()
    if T == 0 or G == 0 or segments.longest == 0:
        return
    op = "lora_expand_handful" if T <= HANDFUL and not add else "lora_expand"
    config = choose(op, bucket, y.device)
    tiles = cdiv(segments.longest, config.rows)
    absent = site.b_units  # a pointer that is not read
    spans, all_tiles = site.spans.shape[0], SPAN * B_ROWS // config.columns
    many = spans * G * tiles >= _MANY * multiprocessors(y.device)
    each = all_tiles if many and bucket <= _SHORT else 1
    _expand_kernel[(spans * (all_tiles // each), G * tiles)](
        h,
        coded(pool, site.codes),
        y,
        segments.start,
        segments.length,
        segments.adapter,
        site.b_units,
        site.ranks,
        absent if site.bias_units is None else site.bias_units,
        absent if site.scale_units is None else site.scale_units,
        site.spans,
        T,
        tiles,
        y.stride(0),
        site.b_units.shape[1],
        slices,
        R,
        None if site.codes is None else pool,
        signals,
        0 if signals is None else programs(h, site, segments),
        PLANES=planes,
        UNIT=UNIT * bytes_of(pool, site.codes),
        ITEM=bytes_of(pool, site.codes),
        HEAD=0 if site.codes is None else B_HEAD,
        LARGEST=1.0 if site.codes is None else site.codes.largest,
        ADD=add,
        HAS_BIAS=site.bias_units is not None,
        HAS_SCALE=site.scale_units is not None,
        BLOCK_T=config.rows,
        BLOCK_N=config.columns,
        B_ROWS=B_ROWS,
        PIECES=all_tiles // each,
        EACH=each,
        ALIGN=gcd(16, *site.slices),
        BLOCK_R=config.depth,
        CT=compute_type(y.dtype),
        num_warps=config.warps,
        num_stages=config.stages,
        **chained(y),
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
            b = _matrix(pool, site, units[block], columns, rank)
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


def _matrix(
    pool: torch.Tensor, site: LoraSite, units: list[int], columns: int, rank: int
) -> torch.Tensor:
    """B of one slice, [columns, rank] float32. Blocks that lie end to end are read as one."""
    stride = b_stride(rank)
    heights = [min(B_ROWS, columns - i * B_ROWS) for i in range(len(units))]
    parts = list(zip(units, heights, strict=True))
    if (codes := site.codes) is not None:
        shapes = ((unit * UNIT, (rows, rank, stride)) for unit, rows in parts)
        return torch.cat([from_block(pool, codes, at, B_HEAD * UNIT, s) for at, s in shapes])
    step = B_ROWS * stride // UNIT
    if all(unit == units[0] + i * step for i, unit in enumerate(units)):
        return pool.as_strided((columns, rank), (stride, 1), units[0] * UNIT).float()
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
                unit = int(site.b_units[adapter, block])
                at, shape = (unit * UNIT, B_HEAD * UNIT), (rank, b_stride(rank))
                b = reference_row(pool, site.codes, at, n, shape)
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
