"""Grouped LoRA shrink: ``h[t, s] = A[adapter of t, slice s] @ x[t]`` for a mixed batch.

    x     [T, K]          activations; columns contiguous
    pool  [elements]      the flat page pool, of the type of x; holds every A (see lora_table)
    h     [P, T, slices, R]  float32 partial sums, to be added over P (``planes``) in order;
                          zero for rows without an adapter, absent slices and ranks past the
                          adapter's own

R is the rank capacity of the site. Accumulation is float32.
"""

import torch

from kernels.launch import cdiv, require
from kernels.lora_table import A_ROWS, UNIT, LoraSite, a_stride
from kernels.segments import BASE, Segments

_TILE = 16  # rows of x in one product on a CPU


def hidden_shape(site: LoraSite, tokens: int) -> tuple[int, int, int, int]:
    """Shape of h."""
    return 1, tokens, len(site.slices), site.rank_capacity


def lora_shrink(
    x: torch.Tensor,
    pool: torch.Tensor,
    site: LoraSite,
    segments: Segments,
    *,
    out: torch.Tensor | None = None,
    deterministic: bool = True,
) -> torch.Tensor:
    """Project every row onto the rank space of its own adapter.

    Args:
        out: float32 of ``hidden_shape`` to write into; required under CUDA graph capture.
        deterministic: a row is bit-equal whoever shares the batch.
    """
    T, K = x.shape
    require(site.width == K, f"x: {K} columns, the site expects {site.width}")
    require(pool.dtype == x.dtype, f"pool: {pool.dtype} does not match x {x.dtype}")
    shape = hidden_shape(site, T)
    h = torch.zeros(shape, dtype=torch.float32, device=x.device) if out is None else out.zero_()
    for start, length, adapter in segments.runs:
        if adapter != BASE and length:
            rows = slice(start, start + length)
            _shrink_rows(x[rows], pool, site, adapter, h[0, rows], deterministic)
    return h


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


def lora_shrink_reference(
    x: torch.Tensor, pool: torch.Tensor, site: LoraSite, segments: Segments
) -> torch.Tensor:
    """One row, one slice and one rank at a time, in float64."""
    h = torch.zeros((1, *hidden_shape(site, x.shape[0])[1:]), dtype=torch.float32, device=x.device)
    for start, length, adapter in segments.runs:
        for index in range(len(site.slices)):
            rank = int(site.ranks[adapter, index]) if adapter != BASE else 0
            for r in range(rank):
                unit = int(site.a_units[adapter, index, r // A_ROWS])
                offset = unit * UNIT + r % A_ROWS * a_stride(site.width)
                row = pool[offset : offset + site.width].double()
                h[0, start : start + length, index, r] = (
                    x[start : start + length].double() @ row
                ).float()
    return h
