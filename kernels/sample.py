"""Draw one token per row.

    logits       [B, V]  float32
    temperature  [B]     float32; 0 takes the largest logit, the lowest id among equals
    top_k        [B]     int32; 0 or at least V: no limit
    top_p        [B]     float32 in (0, 1]
    min_p        [B]     float32 in [0, 1]; 0: no limit
    uniform      [B]     float32 in [0, 1)
    token        [B]     int64
    finite       [B]     bool, where asked for: no logit is NaN or +inf, and one is finite

In this order: logits / temperature; keep those not below the k-th largest; of these keep a token
if the tokens strictly more likely hold less than top_p of the mass; of these keep a token if its
probability is at least min_p times the largest. So equal logits are kept or dropped together.
The token is the first, in vocabulary order, at which the running sum of the kept probabilities
exceeds ``uniform`` times their total.

A row that is not finite in that sense yields some token. Minus infinity bars a token.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import cdiv, chained, next_power_of_2, require, use_triton
from kernels.tuning import MOST_SAMPLE_PARTS, choose, sample_parts

_CANDIDATES = 256  # most likely tokens looked at first on a CPU; beyond them the row is sorted
_TILE = 256  # logits whose largest is found together, on a CPU


@triton.jit(do_not_specialize=["PARTS"])
def _peaks_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    best_ptr,
    where_ptr,
    V,
    stride_b,
    PARTS,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """The largest logit of a part of a row, NaN if there is one, and the first token with it."""
    b = tl.program_id(0)
    part = tl.program_id(1)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = logits_ptr + b.to(tl.int64) * stride_b
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.full((BLOCK,), 0, tl.int32)
    broken = tl.full((BLOCK,), 0, tl.int32)
    span = tl.cdiv(tl.cdiv(V, BLOCK), PARTS) * BLOCK
    for start in range(part * span, tl.minimum((part + 1) * span, V), BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(row + at, mask=at < V, other=-float("inf"))
        broken |= (value != value).to(tl.int32)
        where = tl.where(value > best, at, where)
        best = tl.maximum(best, value)
    peak = tl.max(best, axis=0)
    first = tl.min(tl.where(best == peak, where, V), axis=0)
    peak = tl.where(tl.max(broken, axis=0) > 0, float("nan"), peak)
    tl.store(best_ptr + b * PARTS + part, peak)
    tl.store(where_ptr + b * PARTS + part, first)


@triton.jit(
    do_not_specialize=["PARTS"],
    do_not_specialize_on_alignment=[
        "temperature_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_p_ptr",
        "uniform_ptr",
    ],
)
def _sample_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    best_ptr,
    where_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    token_ptr,
    finite_ptr,
    V,
    stride_b,
    PARTS,
    MOST_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One row. Every pass reads the row anew: it stays in the second-level cache."""
    b = tl.program_id(0)
    row = logits_ptr + b.to(tl.int64) * stride_b
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    part = tl.arange(0, MOST_PARTS)
    best = tl.load(best_ptr + b * PARTS + part, mask=part < PARTS, other=-float("inf"))
    where = tl.load(where_ptr + b * PARTS + part, mask=part < PARTS, other=V)
    fine = tl.min((best == best).to(tl.int32), axis=0) > 0
    peak = tl.max(best, axis=0)
    fine &= (peak < float("inf")) & (peak > -float("inf"))
    token = tl.minimum(tl.min(tl.where(best == peak, where, V), axis=0), V - 1)
    tl.store(finite_ptr + b, fine.to(tl.int8))
    temperature = tl.load(temperature_ptr + b)
    if (temperature > 0) & fine:
        top_k = tl.load(top_k_ptr + b)
        top_p = tl.load(top_p_ptr + b)
        floor = tl.load(min_p_ptr + b)
        bound = tl.full((), 0, tl.uint32)
        if (top_k > 0) & (top_k < V):
            bound = _bound(row, V, peak, temperature, bound, top_k.to(tl.float32), 0, BLOCK)
        if top_p < 1:
            mass = top_p * _mass(row, V, peak, temperature, bound, floor * 0, BLOCK)
            bound = tl.maximum(bound, _bound(row, V, peak, temperature, bound, mass, 1, BLOCK))
        total = _mass(row, V, peak, temperature, bound, floor, BLOCK)
        target = total * tl.load(uniform_ptr + b)
        token = _invert(row, V, peak, temperature, bound, floor, target, token, BLOCK)
    tl.store(token_ptr + b, token.to(tl.int64))


@triton.jit
def _load(row, start, V, peak, temperature, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Order-preserving integers of a block of logits (0 past the end), and their weights."""
    at = start + tl.arange(0, BLOCK)
    value = tl.load(row + at, mask=at < V, other=-float("inf"))
    bits = value.to(tl.uint32, bitcast=True)
    bits = tl.where(bits == 0x80000000, 0, bits)  # -0 equals 0
    key = tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return tl.where(at < V, key, 0), tl.where(at < V, tl.exp((value - peak) / temperature), 0.0)


@triton.jit
def _mass(  # type: ignore[no-untyped-def]
    row, V, peak, temperature, bound, floor, BLOCK: tl.constexpr
):
    """Sum of the kept weights, block by block."""
    total = 0.0
    for start in range(0, V, BLOCK):
        key, weight = _load(row, start, V, peak, temperature, BLOCK)
        total += tl.sum(tl.where((key >= bound) & (weight >= floor), weight, 0.0), axis=0)
    return total


@triton.jit
def _bound(  # type: ignore[no-untyped-def]
    row, V, peak, temperature, lowest, limit, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """The smallest key above which the tokens' count (or weight) is below the limit.

    Two bits of the key per pass, from the top. Only keys not below `lowest` count.
    """
    bound = tl.full((), 0, tl.uint32)
    one = tl.full((), 1, tl.uint32)
    for step in range(16):
        shift = (one * 30) - (one * step) * 2
        first = bound | ((one << shift) - 1)  # the largest key whose digit here is 0
        second = first | (one << shift)
        third = first | (one << shift + 1)
        above0 = 0.0
        above1 = 0.0
        above2 = 0.0
        for start in range(0, V, BLOCK):
            key, weight = _load(row, start, V, peak, temperature, BLOCK)
            share = tl.where(key >= lowest, weight if WEIGHTED else 1.0, 0.0)
            above0 += tl.sum(tl.where(key > first, share, 0.0), axis=0)
            above1 += tl.sum(tl.where(key > second, share, 0.0), axis=0)
            above2 += tl.sum(tl.where(key > third, share, 0.0), axis=0)
        digit = (above0 >= limit).to(tl.uint32) + (above1 >= limit).to(tl.uint32)
        bound = bound | ((digit + (above2 >= limit).to(tl.uint32)) << shift)
    return bound


@triton.jit
def _invert(  # type: ignore[no-untyped-def]
    row, V, peak, temperature, bound, floor, target, token, BLOCK: tl.constexpr
):
    """The first token at which the running sum exceeds the target, else the last one kept."""
    running = 0.0
    found = V
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        key, weight = _load(row, start, V, peak, temperature, BLOCK)
        kept = (key >= bound) & (weight >= floor) & (weight > 0)
        weight = tl.where(kept, weight, 0.0)
        sums = running + tl.cumsum(weight, axis=0)
        found = tl.minimum(found, tl.min(tl.where(kept & (sums > target), at, V), axis=0))
        last = tl.max(tl.where(kept, at, -1), axis=0)
        token = tl.where((found == V) & (last >= 0), last, token)
        running += tl.sum(weight, axis=0)
    return tl.where(found < V, found, token)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    *,
    finite: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per row, [B] int64. Fills ``finite`` where one is given."""
    B = logits.shape[0]
    require(logits.dtype == torch.float32, f"logits: {logits.dtype} is not float32")
    require(logits.stride(1) == 1, "logits: columns must be contiguous")
    if finite is None:
        finite = torch.empty(B, dtype=torch.bool, device=logits.device)
    columns = (temperature, top_k, top_p, min_p, uniform)
    if not use_triton(logits):
        return _sample_torch(logits, *columns, finite)
    token = torch.empty(B, dtype=torch.int64, device=logits.device)
    if B:
        _sample_triton(logits, columns, token, finite)
    return token


def _sample_triton(
    logits: torch.Tensor,
    columns: tuple[torch.Tensor, ...],
    token: torch.Tensor,
    finite: torch.Tensor,
) -> None:
    B, V = logits.shape
    config = choose("sample", B, logits.device)
    block = min(config.columns, next_power_of_2(V))
    parts = sample_parts(B, cdiv(V, block), logits.device)
    best = torch.empty((B, parts), dtype=torch.float32, device=logits.device)
    where = torch.empty((B, parts), dtype=torch.int32, device=logits.device)
    _peaks_kernel[(B, parts)](
        logits,
        best,
        where,
        V,
        logits.stride(0),
        parts,
        BLOCK=block,
        num_warps=config.warps,
        **chained(logits),
    )
    _sample_kernel[(B,)](
        logits,
        best,
        where,
        *columns,
        token,
        finite.view(torch.int8),
        V,
        logits.stride(0),
        parts,
        MOST_PARTS=MOST_SAMPLE_PARTS,
        BLOCK=block,
        num_warps=config.warps,
        num_stages=config.stages,
        **chained(logits),
    )


def _sample_torch(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    finite: torch.Tensor,
) -> torch.Tensor:
    peak, token = _largest(logits)
    finite.copy_(peak.isfinite())
    draws = zip(
        temperature.tolist(),
        top_k.tolist(),
        top_p.tolist(),
        min_p.tolist(),
        uniform.tolist(),
        strict=True,
    )
    for row, (fine, (heat, k, p, floor, number)) in enumerate(
        zip(finite.tolist(), draws, strict=True)
    ):
        if heat > 0 and fine:
            values = logits[row]
            weights = torch.sub(values, values[token[row]]).div_(heat).exp_()
            dropped = weights < floor
            bound = _bound_torch(values, weights, k, p)
            if bound is not None:
                dropped |= values < bound
            sums = weights.masked_fill_(dropped, 0.0).cumsum(0, dtype=torch.float64)
            index = torch.searchsorted(sums, sums[-1] * number, right=True)
            token[row] = torch.minimum(index, torch.searchsorted(sums, sums[-1]))
    return token


def _largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and index of the first of each row's largest; NaN where there is one.

    On a CPU to ask where the largest is costs ten times as much as what it is, so tiles are
    asked for theirs first.
    """
    B, V = logits.shape
    if V % _TILE:
        peak, token = logits.max(dim=1)
        return peak, token
    tiles = logits.view(B, V // _TILE, _TILE)
    peak, tile = tiles.amax(dim=2).max(dim=1)
    inside = tiles[torch.arange(B), tile].max(dim=1).indices
    return peak, tile * _TILE + inside


def _bound_torch(
    values: torch.Tensor, weights: torch.Tensor, top_k: int, top_p: float
) -> torch.Tensor | None:
    """The smallest logit that top-k and top-p keep; None when they keep all."""
    V = values.numel()
    limited = 0 < top_k < V
    if not limited and top_p >= 1.0:
        return None
    best, order = values.topk(min(max(_CANDIDATES, top_k), V) if top_k < V else V)
    if not limited:
        kept_mass = weights.sum(dtype=torch.float64)
        if weights[order].sum(dtype=torch.float64) < kept_mass * top_p:
            best, order = values.sort(descending=True)
    if top_p >= 1.0:
        return best[top_k - 1]
    shares = weights[order].double()
    if limited:
        tied = best >= best[top_k - 1]
        if bool(tied[-1]) and best.numel() < V:  # equals may go on past the candidates
            best, order = values.sort(descending=True)
            shares, tied = weights[order].double(), best >= best[top_k - 1]
        shares = shares.masked_fill(~tied, 0.0)
        kept_mass = shares.sum()
    above = shares.cumsum(0) - shares
    inside = above < kept_mass * top_p
    return best[(int(torch.count_nonzero(inside & (shares > 0))) or 1) - 1]


def sample_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """The definition, one row at a time, in float64."""
    tokens = []
    for b in range(logits.shape[0]):
        row = logits[b].double()
        if float(temperature[b]) == 0.0:
            tokens.append(int((row == row.max()).nonzero()[0]))
            continue
        scaled = row / temperature[b].double()
        keep = torch.ones_like(row, dtype=torch.bool)
        if 0 < int(top_k[b]) < row.numel():
            keep = scaled >= scaled.sort(descending=True).values[int(top_k[b]) - 1]
        p = torch.softmax(scaled.masked_fill(~keep, -torch.inf), dim=0)
        if float(top_p[b]) < 1.0:
            ordered = p.sort(descending=True).values
            before = torch.cat((ordered.new_zeros(1), ordered.cumsum(0)[:-1]))
            above = before[torch.searchsorted(-ordered, -p, right=False)]
            keep = keep & (above < top_p[b].double())
        keep = keep & (p >= min_p[b].double() * p.max())
        total = p.masked_fill(~keep, 0.0).cumsum(0)
        tokens.append(int(torch.count_nonzero(total <= uniform[b].double() * total[-1])))
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)
