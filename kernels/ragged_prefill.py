"""Causal attention of chunks of query tokens over their pages, cached prefix included.

    q             [T, QH, D]          D contiguous
    kv            [P, 2, KVH, PS, D]  one layer's view of the page pool, the chunks' own keys
                                      already written
    page_table    [S, MAXP]           int32, the pages of each sequence in order
    query_start   [S]                 int32, first row of each chunk in q and out
    query_len     [S]                 int32, rows of the chunk; 0: nothing to do
    context_lens  [S]                 int32, tokens including the chunk's own
    out           [T, QH, D]          only the rows of chunks are written
    magnitudes    [P, 2, KVH, PS]     where kv is float8_e4m3fn: see ``e4m3``

Query i of a chunk stands at position context_len - query_len + i and sees the keys up to there,
of them the last `window` (0: all). Keys past a context are never used.
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
    compute_type,
    next_power_of_2,
    require,
    use_triton,
)
from kernels.tuning import prefill_config, prefill_splits

_LOG2_E = 1.4426950408889634
_SPAN = 512  # keys that a part has at least
_JOINED = 16  # rows whose parts one program joins


@triton.jit(
    do_not_specialize=["stride_table", "stride_part", "splits", "chunks"],
    do_not_specialize_on_alignment=[
        "page_table_ptr",
        "query_start_ptr",
        "query_len_ptr",
        "context_lens_ptr",
    ],
)
def _prefill_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    kv_ptr,
    page_table_ptr,
    query_start_ptr,
    query_len_ptr,
    context_lens_ptr,
    out_ptr,
    parts_ptr,
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
    stride_part,
    splits,
    chunks,
    stride_magnitudes,
    G: tl.constexpr,
    D: tl.constexpr,
    PS: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTED: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CT: tl.constexpr,
):
    """BLOCK_M rows of (query, head of one key head), rows of a query adjacent, and a part of the
    keys they see. The last rows of a chunk, which see most, come first.

    Tiles of keys start at multiples of BLOCK_N, and one that a row does not see leaves its state
    unchanged, so without parts a row does not depend on how its sequence is cut into chunks.
    What comes in several parts goes to parts, float32 [splits, T, QH, D], with the base-2
    logarithm of each part's sum of weights in lse, [splits, T, QH]. With magnitudes see
    ``paged_decode``.
    """
    h = tl.program_id(1) // splits
    part = tl.program_id(1) % splits
    tile_of_rows = tl.num_programs(0) - 1 - tl.program_id(0)
    s, first_row = _rows_of(tile_of_rows, query_len_ptr, chunks, G, BLOCK_M)
    if s < chunks:
        queries = tl.load(query_len_ptr + s)
        context = tl.load(context_lens_ptr + s)
        before = context - queries  # tokens of the sequence before this chunk
        lo, hi, parts = _part(
            before, queries, first_row, part, splits, G, WINDOW, SPAN, BLOCK_M, BLOCK_N
        )
        if lo < hi:
            start = tl.load(query_start_ptr + s).to(tl.int64)
            row = first_row + tl.arange(0, BLOCK_M)
            query = row // G
            d = tl.arange(0, BLOCK_D)
            mine = (query < queries)[:, None] & (d < D)[None, :]
            head = h * G + row % G
            at_q = (start + query)[:, None] * stride_qt + head[:, None] * stride_qh + d[None, :]
            q = tl.load(q_ptr + at_q, mask=mine, other=0.0)
            q_size = tl.full((BLOCK_M,), 1.0, tl.float32)
            sizes_ptr = magnitudes_ptr
            if magnitudes_ptr is not None:
                q_size = tl.maximum(tl.max(tl.abs(q.to(tl.float32)), axis=1), 1e-30)
                q = q.to(tl.float32) / q_size[:, None]
                sizes_ptr += h * PS
            q = q.to(CT)
            position = before + query  # [BLOCK_M]
            top = tl.full((BLOCK_M,), -1e30, tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
            keys_ptr = kv_ptr + h * stride_head
            table_ptr = page_table_ptr + s * stride_table
            heads = tl.num_programs(1) // splits
            whole = lo  # tiles before it are seen by every row
            if WINDOW == 0:
                whole = tl.maximum(lo, tl.minimum(hi, (before + first_row // G + 1) // BLOCK_N))
                for tile in range(lo, whole):
                    top, total, acc = _attend(
                        q, q_size, position, context, top, total, acc, tile,
                        keys_ptr, table_ptr, sizes_ptr, scale_log2,
                        stride_page, stride_side, stride_magnitudes, heads * PS,
                        D, PS, WINDOW, BLOCK_N, BLOCK_D, CT, MASKED=False,
                    )  # fmt: skip
            for tile in range(whole, hi):
                top, total, acc = _attend(
                    q, q_size, position, context, top, total, acc, tile,
                    keys_ptr, table_ptr, sizes_ptr, scale_log2,
                    stride_page, stride_side, stride_magnitudes, heads * PS,
                    D, PS, WINDOW, BLOCK_N, BLOCK_D, CT, MASKED=True,
                )  # fmt: skip
            if magnitudes_ptr is not None:
                acc *= 1.0 / 448.0  # see e4m3.LARGEST
            acc /= tl.where(total > 0, total, 1.0)[:, None]  # of a part, a row may see nothing
            unit = scale_log2 if magnitudes_ptr is None else 1.0
            row_out = (start + query)[:, None]
            if PARTED and parts > 1:
                at = part * stride_part + (start + query) * heads * G + head
                tl.store(parts_ptr + at[:, None] * D + d[None, :], acc, mask=mine)
                lse = tl.where(total > 0, top * unit + tl.log2(total), -1e30)
                tl.store(lse_ptr + at, lse, mask=query < queries)
            else:
                at_out = row_out * stride_ot + head[:, None] * stride_oh + d[None, :]
                tl.store(out_ptr + at_out, acc.to(out_ptr.dtype.element_ty), mask=mine)


@triton.jit
def _rows_of(  # type: ignore[no-untyped-def]
    tile, query_len_ptr, chunks, G: tl.constexpr, ROWS: tl.constexpr
):
    """The chunk and the first row in it of one of all chunks' tiles; past the last: chunks."""
    s = 0
    end = 0  # tiles of the chunks looked at
    first = 0  # the chunk's first tile
    for looked in range(0, chunks, 16):
        n = looked + tl.arange(0, 16)
        tiles = tl.cdiv(tl.load(query_len_ptr + n, mask=n < chunks, other=0) * G, ROWS)
        passed = (end + tl.cumsum(tiles, 0) <= tile) & (n < chunks)
        s += tl.sum(passed.to(tl.int32), 0)
        first += tl.sum(tl.where(passed, tiles, 0), 0)
        end += tl.sum(tiles, 0)
    return tl.cast(s, tl.int64), (tile - first) * ROWS


@triton.jit
def _part(  # type: ignore[no-untyped-def]
    before,
    queries,
    first_row,
    part,
    splits,
    G: tl.constexpr,
    WINDOW: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """First and last-plus-one tile of a part of what BLOCK_M rows see, and how many parts have any.

    A part has SPAN tiles or more, so that short contexts come in one.
    """
    first = 0
    if WINDOW > 0:
        first = tl.maximum(before + first_row // G - WINDOW + 1, 0) // BLOCK_N
    last_query = tl.minimum((first_row + BLOCK_M - 1) // G, queries - 1)
    tiles = tl.cdiv(before + last_query + 1, BLOCK_N) - first
    span = tl.maximum(tl.cdiv(tiles, splits), SPAN)
    lo = first + part * span
    return lo, tl.minimum(lo + span, first + tiles), tl.cdiv(tiles, span)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q,
    q_size,
    position,
    context,
    top,
    total,
    acc,
    tile,
    keys_ptr,
    table_ptr,
    sizes_ptr,
    scale_log2,
    stride_page,
    stride_side,
    stride_sizes,
    side_sizes,
    D: tl.constexpr,
    PS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take a tile of keys into the softmax: largest score, sum of weights, weighted sum."""
    d = tl.arange(0, BLOCK_D)
    at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    live = at < context
    if PS % BLOCK_N == 0:  # one page per tile: a scalar look-up, a contiguous tile
        page = tl.load(table_ptr + tile * BLOCK_N // PS)
    elif MASKED:
        page = tl.load(table_ptr + at // PS, mask=live, other=0)
    else:
        page = tl.load(table_ptr + at // PS)
    at_key = (page.to(tl.int64) * stride_page + at % PS * D)[:, None] + d[None, :]
    if MASKED or D != BLOCK_D:
        inside = live[:, None] & (d < D)[None, :]
        k = tl.load(keys_ptr + at_key, mask=inside, other=0.0)
        v = tl.load(keys_ptr + stride_side + at_key, mask=inside, other=0.0)
    else:
        k = tl.load(keys_ptr + at_key)
        v = tl.load(keys_ptr + stride_side + at_key)
    if sizes_ptr is None:
        k, v = k.to(CT), v.to(CT)
    else:
        at_size = page.to(tl.int64) * stride_sizes + at % PS
        k_size = tl.load(sizes_ptr + at_size, mask=live, other=0.0)
        v_size = tl.load(sizes_ptr + side_sizes + at_size, mask=live, other=0.0)
        k, v = from_codes(k, CT), from_codes(v, CT)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    unit = scale_log2  # of a score, base 2
    if sizes_ptr is not None:
        scores *= scale_log2 * (q_size[:, None] * k_size[None, :])
        unit = 1.0
    if MASKED:
        seen = at[None, :] <= position[:, None]
        if WINDOW > 0:
            seen &= at[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, -1e30)
    peak = tl.maximum(top, tl.max(scores, axis=1))
    weights = tl.exp2(scores * unit - (peak * unit)[:, None])  # one instruction
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    decay = tl.exp2((top - peak) * unit)
    total = total * decay + tl.sum(weights, axis=1)
    if sizes_ptr is not None:
        weights *= v_size[None, :]
    acc = tl.dot(weights.to(CT), v, acc * decay[:, None], input_precision="ieee")
    return peak, total, acc


@triton.jit(
    do_not_specialize=["stride_part", "splits", "chunks"],
    do_not_specialize_on_alignment=["query_start_ptr", "query_len_ptr", "context_lens_ptr"],
)
def _combine_kernel(  # type: ignore[no-untyped-def]
    parts_ptr,
    lse_ptr,
    query_start_ptr,
    query_len_ptr,
    context_lens_ptr,
    out_ptr,
    stride_ot,
    stride_oh,
    stride_part,
    splits,
    chunks,
    G: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Join the parts of ROWS rows, where there are several."""
    h = tl.program_id(1)
    s, first_row = _rows_of(tl.program_id(0), query_len_ptr, chunks, G, ROWS)
    if s < chunks:
        queries = tl.load(query_len_ptr + s)
        before = tl.load(context_lens_ptr + s) - queries
        tile_row = first_row // BLOCK_M * BLOCK_M
        _, _, parts = _part(before, queries, tile_row, 0, splits, G, WINDOW, SPAN, BLOCK_M, BLOCK_N)
        if parts > 1:
            start = tl.load(query_start_ptr + s).to(tl.int64)
            row = first_row + tl.arange(0, ROWS)
            query = row // G
            d = tl.arange(0, BLOCK_D)
            live = query < queries
            mine = live[:, None] & (d < D)[None, :]
            head = h * G + row % G
            at = (start + query) * tl.num_programs(1) * G + head
            top = tl.full((ROWS,), -1e30, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
            for _ in range(parts):
                lse = tl.load(lse_ptr + at, mask=live, other=-1e30)
                value = tl.load(parts_ptr + at[:, None] * D + d[None, :], mask=mine, other=0.0)
                peak = tl.maximum(top, lse)
                decay = tl.exp2(top - peak)
                weight = tl.where(lse > -1e29, tl.exp2(lse - peak), 0.0)
                total = total * decay + weight
                acc = acc * decay[:, None] + value * weight[:, None]
                top = peak
                at += stride_part
            acc /= tl.where(total > 0, total, 1.0)[:, None]
            at_out = (start + query)[:, None] * stride_ot + head[:, None] * stride_oh + d[None, :]
            tl.store(out_ptr + at_out, acc.to(out_ptr.dtype.element_ty), mask=mine)


def ragged_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    query_start: torch.Tensor,
    query_len: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    longest: int,
    scale: float,
    out: torch.Tensor,
    window: int = 0,
    deterministic: bool = False,
    magnitudes: torch.Tensor | None = None,
) -> None:
    """Write the attention of every chunk's queries to their rows of out.

    Args:
        longest: at least the longest query_len; a host integer that sizes the launch grid.
        deterministic: a row is bit-equal however its sequence is cut into chunks and whoever
            shares the batch.
    """
    (_, QH, D), (_, _, KVH, _, _) = q.shape, kv.shape
    require(QH % KVH == 0, f"q: {QH} heads are no multiple of {KVH} key heads")
    require_magnitudes(kv, magnitudes)
    alike = kv.dtype == q.dtype or magnitudes is not None
    require(kv.shape[4] == D and alike, "kv: head size and type must match q")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    require(q.stride(2) == 1 and out.stride(2) == 1, "q, out: heads must be contiguous")
    if not use_triton(q):
        attend = _attend_in_tiles if deterministic else _attend_at_once
        chunks = zip(query_start.tolist(), query_len.tolist(), context_lens.tolist(), strict=True)
        for s, (start, length, context) in enumerate(chunks):
            if length:
                pages = page_table[s : s + 1]
                k, v = tiled_attention.gather_pages(kv, pages, [context], magnitudes, dtype=q.dtype)
                rows = slice(start, start + length)
                out[rows] = attend(q[rows], k[0], v[0], context, scale, window)
    elif longest and query_len.numel():
        G = QH // KVH
        op = "ragged_prefill" if magnitudes is None else "ragged_prefill_narrow"
        op = "ragged_prefill_deterministic" if deterministic else op
        block_d = max(MIN_DOT, next_power_of_2(D))
        wide = block_d * (q.element_size() if magnitudes is None else 2)
        config = prefill_config(op, longest * G, wide, q.device)
        S = query_len.numel()
        most = min(longest * S, q.shape[0]) * G  # rows for one key head
        splits = 1
        if not deterministic:
            splits = prefill_splits(cdiv(most, config.rows) * KVH, q.device)
        parts, lse = out, out
        if splits > 1:
            parts = torch.empty((splits, *q.shape), dtype=torch.float32, device=q.device)
            lse = torch.empty((splits, *q.shape[:2]), dtype=torch.float32, device=q.device)
        shape = {
            "G": G,
            "D": D,
            "WINDOW": window,
            "SPAN": max(1, _SPAN // config.columns),
            "BLOCK_M": config.rows,
        }
        shape |= {"BLOCK_N": config.columns, "BLOCK_D": block_d}
        part = q.shape[0] * QH
        _prefill_kernel[(cdiv(most, config.rows) + S - 1, KVH * splits)](
            q,
            kv if magnitudes is None else kv.view(torch.uint8),
            page_table,
            query_start,
            query_len,
            context_lens,
            out,
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
            part,
            splits,
            S,
            None if magnitudes is None else magnitudes.stride(0),
            PS=kv.shape[3],
            PARTED=splits > 1,
            CT=compute_type(q.dtype if magnitudes is None else torch.float16),
            num_warps=config.warps,
            num_stages=config.stages,
            # A multiplication and an addition made one in tiles without a mask, and not in those
            # with one, would round a row differently by where its chunk begins.
            enable_fp_fusion=not deterministic,
            **shape,
        )
        if splits > 1:
            _combine_kernel[(cdiv(most, _JOINED) + S - 1, KVH)](
                parts,
                lse,
                query_start,
                query_len,
                context_lens,
                out,
                out.stride(0),
                out.stride(1),
                part,
                splits,
                S,
                ROWS=_JOINED,
                num_warps=4,
                **shape,
            )


def _attend_at_once(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int, scale: float, window: int
) -> torch.Tensor:
    (length, QH, D), KVH = q.shape, k.shape[0]
    behind = torch.arange(context - length, context)[:, None] - torch.arange(context)
    seen = (behind >= 0) & (behind < window) if window else behind >= 0
    heads = q.view(length, KVH, QH // KVH, D).permute(1, 2, 0, 3).reshape(1, KVH, -1, D)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        heads, k[None, :, :context], v[None, :, :context], seen.repeat(QH // KVH, 1), scale=scale
    )
    return mixed.view(QH, length, D).transpose(0, 1)


def _attend_in_tiles(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int, scale: float, window: int
) -> torch.Tensor:
    (length, QH, D), KVH, height = q.shape, k.shape[0], tiled_attention.QUERIES
    count, G = cdiv(length, height), QH // KVH
    padded = torch.zeros((count * height, QH, D))
    padded[:length] = q.float() * scale
    tiles = padded.view(count, height, KVH, G, D).permute(2, 0, 3, 1, 4)  # by position, then head
    last = torch.arange(context - length, context - length + count * height)
    last = last.clamp_(max=context - 1).view(1, count, 1, height).expand(KVH, -1, G, -1)
    mixed = tiled_attention.attend(
        tiles.reshape(KVH, count * G, height, D),
        last.reshape(KVH, count * G, height),
        k.float(),
        v.float(),
        window=window,
    )
    rows = mixed.view(KVH, count, G, height, D).permute(1, 3, 0, 2, 4).reshape(-1, QH, D)
    return rows[:length].to(q.dtype)


def ragged_prefill_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    query_start: torch.Tensor,
    query_len: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor,
    window: int = 0,
    magnitudes: torch.Tensor | None = None,
) -> None:
    """One chunk and one head at a time."""
    kv = kv if magnitudes is None else from_e4m3(kv, magnitudes, torch.float32)
    G, PS = q.shape[1] // kv.shape[2], kv.shape[3]
    chunks = zip(query_start.tolist(), query_len.tolist(), context_lens.tolist(), strict=True)
    for s, (start, length, context) in enumerate(chunks):
        pages = page_table[s, : cdiv(context, PS)].long()
        rows = slice(start, start + length)
        key = torch.arange(context, device=q.device)
        behind = torch.arange(context - length, context, device=q.device)[:, None] - key
        hidden = (behind < 0) | (behind >= (window or context))
        for head in range(q.shape[1]):
            k = kv[pages, 0, head // G].reshape(-1, kv.shape[4])[:context].float()
            v = kv[pages, 1, head // G].reshape(-1, kv.shape[4])[:context].float()
            scores = (q[rows, head].float() @ k.t() * scale).masked_fill(hidden, -torch.inf)
            out[rows, head] = (torch.softmax(scores, dim=1) @ v).to(out.dtype)
