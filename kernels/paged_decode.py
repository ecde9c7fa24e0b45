"""Attention of one query token per sequence over its pages.

    q             [T, QH, D]          D contiguous; sequence b reads row rows[b]
    kv            [P, 2, KVH, PS, D]  one layer's view of the page pool
    page_table    [B, MAXP]           int32, the pages of each sequence in order
    context_lens  [B]                 int32, tokens including the query's own; 0: nothing to do
    rows          [B]                 int32
    out           [T, QH, D]          only the rows of sequences with a context are written

    out[row] = softmax(scale q k^T) v over the last `window` keys (0: all of them)

QH is a multiple of KVH; the G = QH / KVH query heads of one key head are computed together.
Keys past a context are never used, whatever the page holds there.
"""

import torch

from kernels import tiled_attention
from kernels.launch import cdiv, require


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
) -> None:
    """Write the attention of every sequence's query to its row of out.

    Args:
        deterministic: the result of a sequence is bit-equal whoever shares the batch, and equal
            to what ragged_prefill computes for the same token.
    """
    (_, QH, D), (_, _, KVH, _, _) = q.shape, kv.shape
    require(QH % KVH == 0, f"q: {QH} heads are no multiple of {KVH} key heads")
    require(kv.shape[4] == D and kv.dtype == q.dtype, "kv: head size and type must match q")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    _paged_decode_torch(
        q,
        kv,
        page_table,
        context_lens,
        rows=rows,
        scale=scale,
        out=out,
        window=window,
        deterministic=deterministic,
    )


def _paged_decode_torch(
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
) -> None:
    if context_lens.numel() == 0:
        return
    if int(context_lens.min()) == 0:
        live = context_lens > 0
        page_table, context_lens, rows = page_table[live], context_lens[live], rows[live]
        if rows.numel() == 0:
            return
    longest = int(context_lens.max())
    pages = page_table[:, : cdiv(longest, kv.shape[3])].long().clamp_min_(0)
    last = context_lens.long() - 1
    attend = _attend_in_tiles if deterministic else _attend_at_once
    out[rows] = attend(q[rows], kv, pages, last, scale, window)


def _attend_at_once(
    q: torch.Tensor,
    kv: torch.Tensor,
    pages: torch.Tensor,
    last: torch.Tensor,
    scale: float,
    window: int,
) -> torch.Tensor:
    B, QH, D = q.shape
    KVH = kv.shape[2]
    k, v = gather_pages(kv, pages)  # [B, KVH, S, D]
    behind = last[:, None] - torch.arange(k.shape[2])  # [B, S]
    seen = behind >= 0
    if window:
        seen &= behind < window
    unseen = ~seen[:, None, :, None]
    k.masked_fill_(unseen, 0.0)  # a NaN left in a page by its last owner must not count
    v.masked_fill_(unseen, 0.0)
    heads = q.view(B, KVH, QH // KVH, D)
    mask = seen[:, None, None, :]
    mixed = torch.nn.functional.scaled_dot_product_attention(heads, k, v, mask, scale=scale)
    return mixed.reshape(B, QH, D)


def gather_pages(kv: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values [B, KVH, n PS, D] of pages [B, n]."""
    B, n = pages.shape
    _, _, KVH, PS, D = kv.shape
    heads = torch.arange(KVH)[:, None]
    k, v = kv[pages[:, None], 0, heads], kv[pages[:, None], 1, heads]
    return k.view(B, KVH, n * PS, D), v.view(B, KVH, n * PS, D)


def _attend_in_tiles(
    q: torch.Tensor,
    kv: torch.Tensor,
    pages: torch.Tensor,
    last: torch.Tensor,
    scale: float,
    window: int,
) -> torch.Tensor:
    B, QH, D = q.shape
    KVH = kv.shape[2]
    G = QH // KVH
    height = cdiv(G, tiled_attention.QUERIES)  # tiles of queries per key head
    k, v = gather_pages(kv, pages)
    fetch = tile_fetcher(k, v, last, height)
    padded = q.new_zeros((B, KVH, height * tiled_attention.QUERIES, D), dtype=torch.float32)
    padded[:, :, :G] = q.view(B, KVH, G, D) * scale
    tiles = B * KVH * height
    seen = last.repeat_interleave(KVH * height)[:, None].expand(tiles, tiled_attention.QUERIES)
    first = int(last.min()) - window + 1 if window else 0
    mixed = tiled_attention.attend(
        padded.view(tiles, tiled_attention.QUERIES, D),
        seen,
        tiled_attention.tiles_seen(first, int(last.max())),
        fetch,
        window=window,
    )
    return mixed.view(B, KVH, -1, D)[:, :, :G].reshape(B, QH, D).to(q.dtype)


def tile_fetcher(
    k: torch.Tensor, v: torch.Tensor, last: torch.Tensor, repeats: int
) -> tiled_attention.Fetch:
    """Tiles [B KVH repeats, 64, D] of gathered keys and values, zero past each sequence's last."""
    B, KVH, S, D = k.shape
    keys = tiled_attention.KEYS

    def fetch(tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin, end = tile * keys, min((tile + 1) * keys, S)
        past = (torch.arange(begin, end) > last[:, None])[:, None, :, None]
        pair = []
        for source in (k, v):
            part = source.new_zeros((B, KVH, keys, D), dtype=torch.float32)
            part[:, :, : end - begin] = source[:, :, begin:end].masked_fill(past, 0.0)
            wide = part.view(B * KVH, 1, keys, D).expand(-1, repeats, -1, -1)
            pair.append(wide.reshape(-1, keys, D))
        return pair[0], pair[1]

    return fetch


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
) -> None:
    """One sequence and one head at a time."""
    G, PS = q.shape[1] // kv.shape[2], kv.shape[3]
    for b, (length, row) in enumerate(zip(context_lens.tolist(), rows.tolist(), strict=True)):
        if length == 0:
            continue
        pages = page_table[b, : cdiv(length, PS)].long()
        first = max(0, length - window) if window else 0
        for head in range(q.shape[1]):
            k = kv[pages, 0, head // G].reshape(-1, kv.shape[4])[first:length].float()
            v = kv[pages, 1, head // G].reshape(-1, kv.shape[4])[first:length].float()
            weights = torch.softmax(k @ q[row, head].float() * scale, dim=0)
            out[row, head] = (weights @ v).to(out.dtype)
