"""Grouped LoRA shrink: ``h[t, s] = A[adapter of t, slice s] @ x[t]`` for a mixed batch.

    x     [T, K]          activations; columns contiguous
    pool  [elements]      the flat page pool, of the type of x; holds every A (see lora_table),
                          also those of 8 bits (``lora_codes``), whose magnitudes scale h
    h     [P, T, slices, R]  float32 partial sums, to be added over P (``planes``) in order;
                          zero for rows without an adapter, absent slices and ranks past the
                          adapter's own

R is the rank capacity of the site. P depends on K and T. In deterministic mode the terms are the
same ones added in the same order for every P; else a few rows are cut into more, shorter terms,
since then the time is that of one program. Accumulation is float32.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.launch import cdiv, chained, compute_type, require, round_up, use_triton
from kernels.lora_codes import bytes_of, code_values, coded, from_block, reference_row
from kernels.lora_table import A_HEAD, A_ROWS, UNIT, LoraSite, a_stride
from kernels.segments import BASE, Segments
from kernels.signals import count_up
from kernels.tuning import Config, choose

_TILE = 16  # rows that the torch path takes at once
_TERMS = 8, 1024  # partial sums a row is made of, at most; columns of x in each, at least
_FEW_TOKENS = 512  # up to here each term is a program's and a plane
HANDFUL = 8  # tokens
_SHORT_TERMS = ((HANDFUL, (32, 256)), (32, (16, 512)))  # up to so many tokens


@triton.jit(
    do_not_specialize=["T", "tiles", "SLICES", "RB", "TERMS_EACH"],
    do_not_specialize_on_alignment=[
        "start_ptr",
        "length_ptr",
        "adapter_ptr",
        "units_ptr",
        "ranks_ptr",
    ],
)
def _shrink_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    pool_ptr,
    h_ptr,
    start_ptr,
    length_ptr,
    adapter_ptr,
    units_ptr,
    ranks_ptr,
    T,
    tiles,
    stride_x,
    K,
    STRIDE_A,
    SLICES,
    RB,
    TERM,
    TERMS_EACH,
    magnitudes_ptr,
    signals_ptr,
    UNIT: tl.constexpr,
    ITEM: tl.constexpr,
    HEAD: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """BLOCK_T rows of a segment by one block of ranks of a slice, TERMS_EACH terms of K.

    What a site looks like is no constant: one kernel serves all of a model's. Where A is codes,
    ``pool_ptr`` points at bytes and ``magnitudes_ptr`` at the same memory in its own type.

    With signals, it asks for the first of A before x is there, says when it is, and counts the
    programs that have ended; every program makes one term then.
    """
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    segment = tl.program_id(1) // tiles
    length = tl.load(length_ptr + segment)
    first = tl.program_id(1) % tiles * BLOCK_T
    adapter = tl.load(adapter_ptr + segment).to(tl.int64)
    index = tl.program_id(0) // RB
    block = tl.program_id(0) % RB
    plane = tl.program_id(2)
    site = tl.maximum(adapter, 0) * SLICES + index
    rank = tl.load(ranks_ptr + site)  # together with the unit, not one after the other
    unit = tl.load(units_ptr + site * RB + block).to(tl.int64)
    rank = tl.where((adapter >= 0) & (first < length), rank, 0) - block * BLOCK_R
    r = tl.arange(0, BLOCK_R)
    k = tl.arange(0, BLOCK_K)
    at_a = pool_ptr + unit * UNIT + r[None, :] * STRIDE_A + k[:, None]
    if magnitudes_ptr is not None:
        at_a += HEAD * UNIT
    if signals_ptr is not None:
        k0 = plane * TERM
        ahead = tl.load(
            at_a + k0,
            mask=(r < rank)[None, :] & (k0 + k < K)[:, None],
            other=0.0,
            eviction_policy="evict_first",
        )
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        if tl.program_id(0) + tl.program_id(1) + plane == 0:
            tl.atomic_xchg(signals_ptr, 1, sem="release", scope="gpu")
    if first < length:
        t = first + tl.arange(0, BLOCK_T)
        row = (tl.load(start_ptr + segment) + t).to(tl.int64)
        live = t < length
        acc = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
        if rank > 0:
            if magnitudes_ptr is not None:
                at_size = magnitudes_ptr + unit * (UNIT // ITEM) + r
                size = tl.load(at_size, mask=r < rank, other=0.0).to(tl.float32) * (1.0 / LARGEST)
                size, nothing = tl.broadcast(size[None, :], tl.zeros_like(acc))
            at_x = x_ptr + row[:, None] * stride_x + k[None, :]
            for term in range(plane * TERMS_EACH, (plane + 1) * TERMS_EACH):
                part = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
                begin = term * TERM
                if signals_ptr is not None:
                    inside = begin + k < K
                    x = tl.load(at_x + begin, mask=live[:, None] & inside[None, :], other=0.0)
                    part = tl.dot(x.to(CT), code_values(ahead, CT), part, input_precision="ieee")
                    begin += BLOCK_K
                for k0 in range(begin, tl.minimum(term * TERM + TERM, K), BLOCK_K):
                    inside = k0 + k < K
                    x = tl.load(at_x + k0, mask=live[:, None] & inside[None, :], other=0.0)
                    a = tl.load(
                        at_a + k0,
                        mask=(r < rank)[None, :] & inside[:, None],
                        other=0.0,
                        eviction_policy="evict_first",
                    )
                    part = tl.dot(x.to(CT), code_values(a, CT), part, input_precision="ieee")
                if magnitudes_ptr is not None:
                    # Rounded before it is added, as it is where each term is a plane.
                    part = tl.fma(part, size, nothing)
                acc += part
        at = ((plane.to(tl.int64) * T + row) * SLICES + index) * (RB * BLOCK_R) + block * BLOCK_R
        tl.store(h_ptr + at[:, None] + r[None, :], acc, mask=live[:, None])
    if signals_ptr is not None:
        count_up(signals_ptr + 1)


def hidden_shape(
    site: LoraSite, tokens: int, *, deterministic: bool = True
) -> tuple[int, int, int, int]:
    """Shape of h."""
    few = use_triton(site.ranks) and tokens <= _FEW_TOKENS
    planes = _terms(site.width, tokens, deterministic)[0] if few else 1
    return planes, tokens, len(site.slices), site.rank_capacity


def _terms(width: int, tokens: int, deterministic: bool) -> tuple[int, int]:
    """(count, columns) of the terms of a row; in deterministic mode by the width alone."""
    short = () if deterministic else _SHORT_TERMS
    most, shortest = next((terms for limit, terms in short if tokens <= limit), _TERMS)
    columns = max(shortest, round_up(cdiv(width, most), 256))
    return cdiv(width, columns), columns


def lora_shrink(
    x: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    *,
    out: torch.Tensor | None = None,
    deterministic: bool = True,
    signals: torch.Tensor | None = None,
) -> torch.Tensor:
    """Project every row onto the rank space of its own adapter.

    Args:
        out: float32 of ``hidden_shape`` to write into; required under CUDA graph capture.
        deterministic: a row is bit-equal whoever shares the batch.
        signals: [2] int32, zero: becomes 1 when x is there, and how many of ``programs`` have
            ended. A kernel after this one may begin before and must await what it reads.
    """
    T, K = x.shape
    require(site.width == K, f"x: {K} columns, the site expects {site.width}")
    require(pool.dtype == x.dtype, f"pool: {pool.dtype} does not match x {x.dtype}")
    require(x.stride(1) == 1, "x: columns must be contiguous")
    shape = hidden_shape(site, T, deterministic=deterministic)
    if use_triton(x):
        h = torch.empty(shape, dtype=torch.float32, device=x.device) if out is None else out
        _launch(x, pool, site, segments, h, deterministic, signals)
        return h
    h = torch.zeros(shape, dtype=torch.float32, device=x.device) if out is None else out.zero_()
    for start, length, adapter in segments.runs:
        if adapter != BASE and length:
            rows = slice(start, start + length)
            _shrink_rows(x[rows], pool, site, adapter, h[0, rows], deterministic)
    return h


def _launch(
    x: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    h: torch.Tensor,
    deterministic: bool,
    signals: torch.Tensor | None,
) -> None:
    (T, K), G = x.shape, segments.start.numel()
    if T == 0 or G == 0 or segments.longest == 0:
        require(signals is None, "signals: no program would give them")
        return
    _, slices, blocks = site.a_units.shape
    terms, columns = _terms(K, T, deterministic)
    planes = h.shape[0]
    require(signals is None or terms == planes, f"signals: {T} rows are not a term a program")
    config = _config(segments, T, deterministic)
    tiles = cdiv(segments.longest, config.rows)
    _shrink_kernel[(slices * blocks, G * tiles, planes)](
        x,
        coded(pool, site.codes),
        h,
        segments.start,
        segments.length,
        segments.adapter,
        site.a_units,
        site.ranks,
        T,
        tiles,
        x.stride(0),
        K,
        a_stride(K),
        slices,
        blocks,
        columns,
        terms // planes,
        None if site.codes is None else pool,
        signals,
        UNIT=UNIT * bytes_of(pool, site.codes),
        ITEM=bytes_of(pool, site.codes),
        HEAD=A_HEAD,
        LARGEST=1.0 if site.codes is None else site.codes.largest,
        BLOCK_T=config.rows,
        BLOCK_R=A_ROWS,
        BLOCK_K=config.depth,
        CT=compute_type(x.dtype),
        num_warps=config.warps,
        num_stages=config.stages,
        **chained(x, chain=signals is not None),
    )


def programs(h: torch.Tensor, site: LoraSite, segments: Segments) -> int:
    """How many make h, not in deterministic mode."""
    _, slices, blocks = site.a_units.shape
    config = _config(segments, h.shape[1], deterministic=False)
    tiles = cdiv(segments.longest, config.rows)
    return slices * blocks * segments.start.numel() * tiles * h.shape[0]


def _config(segments: Segments, tokens: int, deterministic: bool) -> Config:
    op = "lora_shrink_handful" if tokens <= HANDFUL and not deterministic else "lora_shrink"
    return choose(op, tile_bucket(segments, deterministic), segments.start.device)


def tile_bucket(segments: Segments, deterministic: bool) -> int:
    """What tiles are chosen by: another height may round differently."""
    return 1 if deterministic else segments.longest


def _shrink_rows(
    x: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    adapter: int,
    h: torch.Tensor,
    deterministic: bool,
) -> None:
    ranks: list[int] = site.ranks[adapter].tolist()
    if not any(ranks):
        return
    a = _stacked(pool, site, adapter, ranks)  # [sum of ranks, K] float32
    low = project(x, a, deterministic)
    first = 0
    for index, rank in enumerate(ranks):
        h[:, index, :rank] = low[:, first : first + rank]
        first += rank


def project(x: torch.Tensor, weight: torch.Tensor, deterministic: bool) -> torch.Tensor:
    """x @ weight.T in float32, [rows, out].

    float32 rather than the tensors' own type: for so few rows the call itself is the cost, and
    a bfloat16 product costs ten times as much to start. A row's rounding depends on how many
    rows the product has, so the deterministic path always takes 16.
    """
    rows = x.shape[0]
    if not deterministic:
        return torch.nn.functional.linear(x.float(), weight)
    count = cdiv(rows, _TILE)
    padded = x.new_zeros((count, _TILE, x.shape[1]), dtype=torch.float32)
    padded.view(-1, x.shape[1])[:rows] = x
    tiles = [torch.nn.functional.linear(tile, weight) for tile in padded.unbind(0)]
    return (tiles[0] if count == 1 else torch.cat(tiles))[:rows]


def _stacked(pool: torch.Tensor, site: LoraSite, adapter: int, ranks: list[int]) -> torch.Tensor:
    if site.codes is not None:
        return torch.cat(list(_coded_blocks(pool, site, adapter, ranks)))
    stride = a_stride(site.width)
    units: list[list[int]] = site.a_units[adapter].tolist()
    parts: list[tuple[int, int]] = []  # (element offset, rows); blocks end to end are one part
    for blocks, rank in zip(units, ranks, strict=True):
        for index in range(cdiv(rank, A_ROWS)):
            offset, rows = blocks[index] * UNIT, min(A_ROWS, rank - index * A_ROWS)
            if parts and parts[-1][0] + parts[-1][1] * stride == offset:
                parts[-1] = parts[-1][0], parts[-1][1] + rows
            else:
                parts.append((offset, rows))
    views = [pool.as_strided((rows, site.width), (stride, 1), offset) for offset, rows in parts]
    return (views[0] if len(views) == 1 else torch.cat(views)).float()


def _coded_blocks(
    pool: torch.Tensor, site: LoraSite, adapter: int, ranks: list[int]
) -> Iterator[torch.Tensor]:
    assert site.codes is not None, "these are codes"
    units: list[list[int]] = site.a_units[adapter].tolist()
    for blocks, rank in zip(units, ranks, strict=True):
        for index in range(cdiv(rank, A_ROWS)):
            shape = min(A_ROWS, rank - index * A_ROWS), site.width, a_stride(site.width)
            yield from_block(pool, site.codes, blocks[index] * UNIT, A_HEAD * UNIT, shape)


def lora_shrink_reference(
    x: torch.Tensor, pool: torch.Tensor, site: LoraSite, segments: Segments
) -> torch.Tensor:
    """One row, one slice and one rank at a time, in float64."""
    h = torch.zeros((1, *hidden_shape(site, x.shape[0])[1:]), dtype=torch.float32, device=x.device)
    for start, length, adapter in segments.runs:
        for index in range(len(site.slices)):
            rank = int(site.ranks[adapter, index]) if adapter != BASE else 0
            for r in range(rank):
                at = int(site.a_units[adapter, index, r // A_ROWS]) * UNIT, A_HEAD * UNIT
                shape = site.width, a_stride(site.width)
                row = reference_row(pool, site.codes, at, r % A_ROWS, shape)
                h[0, start : start + length, index, r] = (
                    x[start : start + length].double() @ row
                ).float()
    return h
