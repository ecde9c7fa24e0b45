"""Attention of one query token per sequence, or of its last few, over its pages.

    q             [T, QH, D]          D contiguous; sequence b reads row rows[b]
    kv            [P, 2, KVH, PS, D]  one layer's view of the page pool
    page_table    [B, MAXP]           int32, the pages of each sequence in order
    context_lens  [B]                 int32, tokens including the query's own; 0: nothing to do
    rows          [B]                 int32, the first of its queries
    query_len     [B]                 int32, at most `queries`; without it every sequence has one
    out           [T, QH, D]          only the rows of sequences with a context are written
    magnitudes    [P, 2, KVH, PS]     where kv is float8_e4m3fn: see ``e4m3``

    out[row] = softmax(scale q k^T) v over the last `window` keys (0: all of them) up to the
    query's own: query i of n is at position context - n + i

QH is a multiple of KVH; the G = QH / KVH query heads of one key head are computed together, and so
are a sequence's queries: its keys are read once for all of them.
Keys past a context are never used, whatever the page holds there.
"""

import torch
import triton
import triton.language as tl

from kernels import tiled_attention
from kernels.e4m3 import LARGEST, from_codes, from_e4m3
from kernels.kv_write import require_magnitudes
from kernels.launch import (
    MIN_DOT,
    cdiv,
    chained,
    compute_type,
    next_power_of_2,
    require,
    use_triton,
)
from kernels.places import SeenKeys
from kernels.tuning import choose, decode_splits

_LOG2_E = 1.4426950408889634
_PARTS = 16  # of a context, joined at once
_TALL = 64  # rows of a tile, beyond which it takes the registers of more warps
_SPAN = 8  # tiles of keys in a part when the result must not depend on the batch


@triton.jit(
    do_not_specialize=["stride_table", "splits"],
    do_not_specialize_on_alignment=[
        "page_table_ptr",
        "context_lens_ptr",
        "rows_ptr",
        "query_len_ptr",
    ],
)
def _decode_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    kv_ptr,
    page_table_ptr,
    context_lens_ptr,
    rows_ptr,
    query_len_ptr,
    out_ptr,
    lse_ptr,
    magnitudes_ptr,
    scale_log2,
    stride_qt,
    stride_qh,
    stride_page,
    stride_side,
    stride_head,
    stride_table,
    stride_ot,
    stride_oh,
    splits,
    stride_magnitudes,
    G: tl.constexpr,
    Q: tl.constexpr,
    D: tl.constexpr,
    PS: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTED: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One part of the keys of one sequence, for the query heads of one key head, Q queries of each.

    With magnitudes kv is uint8 and products are of float16, which holds codes, and queries once
    they are at most 1. Keys' magnitudes scale their scores, values' their weights, and what all
    have in common is in scale_log2 and taken out of the sum at the end.

    With several parts, out is float32 [B, Q, splits, QH, D] and lse [B, Q, splits, QH] the base-2
    logarithm of each part's sum of weights; parts without keys are left unwritten. Of a part whose
    keys a query does not see, the logarithm is so low that it counts for nothing.
    """
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    length = tl.load(context_lens_ptr + b)
    lo, hi = _part(length, tl.program_id(2), splits, WINDOW, Q, SPAN, BLOCK_N)
    if lo < hi:
        row = tl.load(rows_ptr + b).to(tl.int64)
        g = tl.arange(0, BLOCK_G)
        d = tl.arange(0, BLOCK_D)
        n = tl.arange(0, BLOCK_N)
        if Q == 1:
            live = g < G
            head = (h * G + g)[:, None]
            ends = length  # keys a query sees
        else:
            count = tl.load(query_len_ptr + b)
            query = g // G
            live = query < tl.minimum(count, Q)
            head = (h * G + g % G)[:, None]
            ends = (length - count + 1 + query)[:, None]
            row = row + query[:, None]
        mine = live[:, None] & (d < D)[None, :]
        q = tl.load(q_ptr + row * stride_qt + head * stride_qh + d[None, :], mask=mine, other=0.0)
        if magnitudes_ptr is not None:
            q_size = tl.maximum(tl.max(tl.abs(q.to(tl.float32)), axis=1), 1e-30)
            q = q.to(tl.float32) / q_size[:, None]
        q = q.to(CT)
        top = tl.full((BLOCK_G,), -1e30, tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        for tile in range(lo, hi):
            at = tile * BLOCK_N + n
            seen = at < length
            if Q == 1:
                if WINDOW > 0:
                    seen &= at >= length - WINDOW
                visible = seen[None, :]
            else:
                visible = seen[None, :] & (at[None, :] < ends)
                if WINDOW > 0:
                    visible &= at[None, :] >= ends - WINDOW
            if PS % BLOCK_N == 0:  # one page per tile: a scalar look-up, a contiguous tile
                page = tl.load(page_table_ptr + b * stride_table + tile * BLOCK_N // PS)
            else:
                page = tl.load(page_table_ptr + b * stride_table + at // PS, mask=seen, other=0)
            base = page.to(tl.int64) * stride_page + h * stride_head + at % PS * D
            inside = seen[:, None] & (d < D)[None, :]
            k = tl.load(kv_ptr + base[:, None] + d[None, :], mask=inside, other=0.0)
            v = tl.load(kv_ptr + stride_side + base[:, None] + d[None, :], mask=inside, other=0.0)
            if magnitudes_ptr is None:
                k, v = k.to(CT), v.to(CT)
            else:
                at_size = page.to(tl.int64) * stride_magnitudes + h * PS + at % PS
                k_size = tl.load(magnitudes_ptr + at_size, mask=seen, other=0.0)
                at_size += tl.num_programs(1) * PS
                v_size = tl.load(magnitudes_ptr + at_size, mask=seen, other=0.0)
                k, v = from_codes(k, CT), from_codes(v, CT)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            if magnitudes_ptr is not None:
                scores *= q_size[:, None] * k_size[None, :]
            scores = tl.where(visible, scores, -1e30)
            peak = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.where(visible, tl.exp2(scores - peak[:, None]), 0.0)
            decay = tl.exp2(top - peak)
            total = total * decay + tl.sum(weights, axis=1)
            if magnitudes_ptr is not None:
                weights *= v_size[None, :]
            acc = tl.dot(weights.to(CT), v, acc * decay[:, None], input_precision="ieee")
            top = peak
        if Q > 1:  # a query may see none of these keys
            total = tl.where(total > 0, total, 1.0)
        acc = acc / total[:, None]
        if magnitudes_ptr is not None:
            acc *= 1.0 / 448.0  # see e4m3.LARGEST
        if not PARTED:
            to = out_ptr + row * stride_ot + head * stride_oh
        else:
            part = b * Q
            if Q > 1:
                part += query[:, None]
            part = (part * splits + tl.program_id(2)) * tl.num_programs(1) * G
            to = out_ptr + (part + head) * D
            tl.store(lse_ptr + part + head, (top + tl.log2(total))[:, None], mask=live[:, None])
        tl.store(to + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mine)


@triton.jit
def _part(  # type: ignore[no-untyped-def]
    length,
    part,
    splits,
    WINDOW: tl.constexpr,
    Q: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """First and last-plus-one tile of a part. SPAN 0 shares a context evenly."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW - Q + 1, 0) // BLOCK_N
    end = tl.cdiv(length, BLOCK_N)
    if SPAN == 0:
        span = tl.cdiv(end - first, splits)
        lo = first + part * span
    else:
        span = SPAN
        lo = tl.maximum(part * span, first)
        end = tl.minimum(end, (part + 1) * span)
    return lo, tl.minimum(lo + span, end)


@triton.jit
def _parts_used(  # type: ignore[no-untyped-def]
    length,
    splits,
    WINDOW: tl.constexpr,
    Q: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """How many parts have keys, or could have: the ones after them are empty."""
    end = tl.cdiv(length, BLOCK_N)
    if SPAN == 0:
        if WINDOW > 0:
            end -= tl.maximum(length - WINDOW - Q + 1, 0) // BLOCK_N
        return tl.cdiv(end, tl.cdiv(end, splits))
    else:
        return tl.cdiv(end, SPAN)


@triton.jit(
    do_not_specialize=["splits"],
    do_not_specialize_on_alignment=["context_lens_ptr", "rows_ptr", "query_len_ptr"],
)
def _combine_kernel(  # type: ignore[no-untyped-def]
    parts_ptr,
    lse_ptr,
    context_lens_ptr,
    rows_ptr,
    query_len_ptr,
    out_ptr,
    stride_ot,
    stride_oh,
    splits,
    Q: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Join the parts of one head of one query, BLOCK_S at a time, so that unused parts change
    nothing."""
    asked = tl.program_id(0).to(tl.int64)
    b = asked // Q
    head = tl.program_id(1)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    length = tl.load(context_lens_ptr + b)
    if Q > 1:
        length = tl.where(asked % Q < tl.load(query_len_ptr + b), length, 0)
    if length > 0:
        d = tl.arange(0, BLOCK_D)
        top = -1e30
        total = 0.0
        acc = tl.zeros((BLOCK_D,), tl.float32)
        used_parts = _parts_used(length, splits, WINDOW, Q, SPAN, BLOCK_N)
        for start in range(0, used_parts, BLOCK_S):
            part = start + tl.arange(0, BLOCK_S)
            lo, hi = _part(length, part, splits, WINDOW, Q, SPAN, BLOCK_N)
            used = (part < splits) & (lo < hi)
            at = (asked * splits + part) * tl.num_programs(1) + head
            lse = tl.load(lse_ptr + at, mask=used, other=-1e30)
            mine = used[:, None] & (d < D)[None, :]
            value = tl.load(parts_ptr + at[:, None] * D + d[None, :], mask=mine, other=0.0)
            peak = tl.maximum(top, tl.max(lse, axis=0))
            decay = tl.exp2(top - peak)
            weight = tl.where(used, tl.exp2(lse - peak), 0.0)
            total = total * decay + tl.sum(weight, axis=0)
            acc = acc * decay + tl.sum(value * weight[:, None], axis=0)
            top = peak
        row = tl.load(rows_ptr + b).to(tl.int64) + asked % Q
        to = out_ptr + row * stride_ot + head * stride_oh + d
        tl.store(to, (acc / total).to(out_ptr.dtype.element_ty), mask=d < D)


def paged_decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    rows: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int = 0,
    deterministic: bool = False,
    seen: SeenKeys | None = None,
    magnitudes: torch.Tensor | None = None,
    query_len: torch.Tensor | None = None,
    queries: int = 1,
) -> None:
    """Write the attention of every sequence's queries to their rows of out.

    Args:
        queries: the most of one sequence; a host integer. More than one are not deterministic.
        seen: spares a CPU finding again what all layers of a pass share.
        deterministic: the result of a sequence is bit-equal whoever shares the batch, and equal
            to what ragged_prefill computes for the same token.
    """
    (_, QH, D), (_, _, KVH, _, _) = q.shape, kv.shape
    require(QH % KVH == 0, f"q: {QH} heads are no multiple of {KVH} key heads")
    require_magnitudes(kv, magnitudes)
    alike = kv.dtype == q.dtype or magnitudes is not None
    require(kv.shape[4] == D and alike, "kv: head size and type must match q")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    require(q.stride(2) == 1 and out.stride(2) == 1, "q, out: heads must be contiguous")
    require(queries == 1 or query_len is not None, "query_len: needed for several queries")
    require(queries == 1 or not deterministic, "queries: several are for ragged_prefill")
    if not use_triton(q):
        if query_len is not None and queries > 1:
            page_table, context_lens, rows = _each(
                page_table, context_lens, rows, query_len, queries
            )
            seen = None
        if deterministic:
            _in_tiles(q, kv, page_table, context_lens, rows, scale, out, window, magnitudes)
        else:
            seen = seen or SeenKeys.of(kv, page_table, context_lens, rows)
            _at_once(q, seen.read(kv, magnitudes, q.dtype), seen, rows, scale, out, window)
        return
    _paged_decode_triton(
        q,
        kv,
        page_table,
        context_lens,
        rows=rows,
        scale=scale,
        out=out,
        window=window,
        deterministic=deterministic,
        magnitudes=magnitudes,
        query_len=query_len if queries > 1 else None,
        queries=queries,
    )


def _each(
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    rows: torch.Tensor,
    query_len: torch.Tensor,
    queries: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Page tables, contexts and rows of each query by itself; no context where there is none."""
    query = torch.arange(queries)
    context = context_lens.unsqueeze(1) - query_len.unsqueeze(1) + 1 + query
    context = torch.where(query < query_len.unsqueeze(1), context, 0)
    row = (rows.unsqueeze(1) + query).flatten()
    return page_table.repeat_interleave(queries, 0), context.flatten().to(torch.int32), row


def _paged_decode_triton(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    rows: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int,
    deterministic: bool,
    magnitudes: torch.Tensor | None,
    query_len: torch.Tensor | None,
    queries: int,
) -> None:
    (_, QH, D), (_, _, KVH, PS, _) = q.shape, kv.shape
    B, capacity = page_table.shape
    if B == 0:
        return
    config = choose("paged_decode", B, q.device)
    tiles = cdiv(capacity * PS, config.columns)
    span = _SPAN if deterministic else 0
    splits = cdiv(tiles, span) if span else decode_splits(B, KVH, tiles, q.device)
    shape = {"Q": queries, "D": D, "WINDOW": window, "SPAN": span, "BLOCK_N": config.columns}
    block_d = max(MIN_DOT, next_power_of_2(D))
    height = max(config.rows, next_power_of_2(queries * QH // KVH))
    parts, lse = out, out
    if splits > 1:
        parts = torch.empty((B * queries, splits, QH, D), dtype=torch.float32, device=q.device)
        lse = torch.empty((B * queries, splits, QH), dtype=torch.float32, device=q.device)
    _decode_kernel[(B, KVH, splits)](
        q,
        kv if magnitudes is None else kv.view(torch.uint8),
        page_table,
        context_lens,
        rows,
        query_len,
        parts,
        lse,
        magnitudes,
        scale * _LOG2_E / (1.0 if magnitudes is None else LARGEST),
        q.stride(0),
        q.stride(1),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        page_table.stride(0),
        out.stride(0),
        out.stride(1),
        splits,
        None if magnitudes is None else magnitudes.stride(0),
        PARTED=splits > 1,
        G=QH // KVH,
        PS=PS,
        BLOCK_G=height,
        BLOCK_D=block_d,
        CT=compute_type(q.dtype if magnitudes is None else torch.float16),
        num_warps=config.warps if height <= _TALL else 2 * config.warps,
        num_stages=config.stages,
        **shape,
        **chained(q),
    )
    if splits > 1:
        _combine_kernel[(B * queries, QH)](
            parts,
            lse,
            context_lens,
            rows,
            query_len,
            out,
            out.stride(0),
            out.stride(1),
            splits,
            BLOCK_D=block_d,
            BLOCK_S=_PARTS,
            num_warps=4,
            **shape,
            **chained(q),
        )


def _at_once(
    q: torch.Tensor,
    keys_values: tuple[torch.Tensor, torch.Tensor],
    seen: SeenKeys,
    rows: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int,
) -> None:
    k, v = keys_values
    (T, QH, D), KVH, B = q.shape, k.shape[1], seen.last.numel()
    if B == 0:
        return
    rows = rows if seen.live is None else rows[seen.live]
    whole = seen.in_order and B == T
    heads = (q if whole else q[rows]).view(B, KVH, QH // KVH, D)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        heads, k, v, seen.hidden(window, q.dtype), scale=scale
    )
    if whole:
        out.view(heads.shape).copy_(mixed)
    else:
        out[rows] = mixed.reshape(B, QH, D)


def _in_tiles(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    rows: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int,
    magnitudes: torch.Tensor | None,
) -> None:
    lengths = context_lens.tolist()
    if 0 in lengths:
        live = context_lens > 0
        page_table, rows = page_table[live], rows[live]
        lengths = [length for length in lengths if length]
    if lengths:
        k, v = tiled_attention.gather_pages(kv, page_table, lengths, magnitudes, dtype=q.dtype)
        last = torch.tensor(lengths) - 1
        out[rows] = _attend_in_tiles(q[rows], k, v, last, scale, window)


def _attend_in_tiles(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: torch.Tensor, scale: float, window: int
) -> torch.Tensor:
    (B, QH, D), (_, KVH, S, _) = q.shape, k.shape
    G, height = QH // KVH, tiled_attention.QUERIES
    count = cdiv(G, height)  # tiles of queries per key head
    padded = torch.zeros((B, KVH, count * height, D))
    padded[:, :, :G] = q.float().view(B, KVH, G, D) * scale
    mixed = tiled_attention.attend(
        padded.view(B * KVH, count, height, D),
        last.repeat_interleave(KVH)[:, None, None].expand(-1, count, height),
        k.reshape(B * KVH, S, D).float(),
        v.reshape(B * KVH, S, D).float(),
        window=window,
    )
    return mixed.view(B, KVH, -1, D)[:, :, :G].reshape(B, QH, D).to(q.dtype)


def paged_decode_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    rows: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int = 0,
    magnitudes: torch.Tensor | None = None,
    query_len: torch.Tensor | None = None,
    queries: int = 1,
) -> None:
    """One query and one head at a time."""
    kv = kv if magnitudes is None else from_e4m3(kv, magnitudes, torch.float32)
    G, PS = q.shape[1] // kv.shape[2], kv.shape[3]
    counts = [1] * len(rows) if query_len is None else query_len.tolist()
    asked = [
        (b, context - count + 1 + i, row + i)
        for b, (context, row, count) in enumerate(
            zip(context_lens.tolist(), rows.tolist(), counts, strict=True)
        )
        for i in range(min(count, queries))
        if context
    ]
    for b, length, row in asked:
        pages = page_table[b, : cdiv(length, PS)].long()
        first = max(0, length - window) if window else 0
        for head in range(q.shape[1]):
            k = kv[pages, 0, head // G].reshape(-1, kv.shape[4])[first:length].float()
            v = kv[pages, 1, head // G].reshape(-1, kv.shape[4])[first:length].float()
            weights = torch.softmax(k @ q[row, head].float() * scale, dim=0)
            out[row, head] = (weights @ v).to(out.dtype)
