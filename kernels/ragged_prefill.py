"""Causal attention of chunks of query tokens over their pages, cached prefix included.

    q             [T, QH, D]          D contiguous
    kv            [P, 2, KVH, PS, D]  one layer's view of the page pool, the chunks' own keys
                                      already written
    page_table    [S, MAXP]           int32, the pages of each sequence in order
    query_start   [S]                 int32, first row of each chunk in q and out
    query_len     [S]                 int32, rows of the chunk; 0: nothing to do
    context_lens  [S]                 int32, tokens including the chunk's own
    out           [T, QH, D]          only the rows of chunks are written

Query i of a chunk stands at position context_len - query_len + i and sees the keys up to there,
of them the last `window` (0: all). Keys past a context are never used.
"""

import torch

from kernels import tiled_attention
from kernels.launch import cdiv, require
from kernels.paged_decode import gather_pages, tile_fetcher


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
) -> None:
    """Write the attention of every chunk's queries to their rows of out.

    Args:
        longest: at least the longest query_len; a host integer that sizes the launch grid.
        deterministic: a row is bit-equal however its sequence is cut into chunks and whoever
            shares the batch.
    """
    (_, QH, D), (_, _, KVH, _, _) = q.shape, kv.shape
    require(QH % KVH == 0, f"q: {QH} heads are no multiple of {KVH} key heads")
    require(kv.shape[4] == D and kv.dtype == q.dtype, "kv: head size and type must match q")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    attend = _attend_in_tiles if deterministic else _attend_at_once
    chunks = zip(query_start.tolist(), query_len.tolist(), context_lens.tolist(), strict=True)
    for s, (start, length, context) in enumerate(chunks):
        if length:
            pages = page_table[s : s + 1, : cdiv(context, kv.shape[3])].long()
            rows = slice(start, start + length)
            out[rows] = attend(q[rows], kv, pages, context, scale, window)


def _attend_at_once(
    q: torch.Tensor, kv: torch.Tensor, pages: torch.Tensor, context: int, scale: float, window: int
) -> torch.Tensor:
    length, QH, D = q.shape
    KVH = kv.shape[2]
    k, v = (side[:, :, :context] for side in gather_pages(kv, pages))  # [1, KVH, context, D]
    position = torch.arange(context - length, context)
    behind = position[:, None] - torch.arange(context)
    seen = behind >= 0
    if window:
        seen &= behind < window
    heads = q.view(length, KVH, QH // KVH, D).permute(1, 2, 0, 3).reshape(1, KVH, -1, D)
    mask = seen.repeat(QH // KVH, 1)
    mixed = torch.nn.functional.scaled_dot_product_attention(heads, k, v, mask, scale=scale)
    return mixed.view(QH, length, D).transpose(0, 1)


def _attend_in_tiles(
    q: torch.Tensor, kv: torch.Tensor, pages: torch.Tensor, context: int, scale: float, window: int
) -> torch.Tensor:
    length, QH, D = q.shape
    KVH, height = kv.shape[2], tiled_attention.QUERIES
    count = cdiv(length, height)  # tiles of queries per head
    padded = q.new_zeros((QH, count * height, D), dtype=torch.float32)
    padded[:, :length] = q.transpose(0, 1) * scale
    last = torch.full((count * height,), -1)
    last[:length] = torch.arange(context - length, context)
    repeats = QH // KVH * count
    k, v = gather_pages(kv, pages)
    first = context - length - window + 1 if window else 0
    mixed = tiled_attention.attend(
        padded.view(QH * count, height, D),
        last.view(1, count, height).expand(QH, -1, -1).reshape(-1, height),
        tiled_attention.tiles_seen(first, context - 1),
        tile_fetcher(k, v, torch.tensor([context - 1]), repeats),
        window=window,
    )
    return mixed.view(QH, -1, D)[:, :length].transpose(0, 1).to(q.dtype)


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
) -> None:
    """One query and one head at a time."""
    G, PS = q.shape[1] // kv.shape[2], kv.shape[3]
    for s in range(query_start.numel()):
        length, context = int(query_len[s]), int(context_lens[s])
        pages = page_table[s, : cdiv(context, PS)].long()
        for i in range(length):
            row, end = int(query_start[s]) + i, context - length + i + 1
            first = max(0, end - window) if window else 0
            for head in range(q.shape[1]):
                k = kv[pages, 0, head // G].reshape(-1, kv.shape[4])[first:end].float()
                v = kv[pages, 1, head // G].reshape(-1, kv.shape[4])[first:end].float()
                weights = torch.softmax(k @ q[row, head].float() * scale, dim=0)
                out[row, head] = (weights @ v).to(out.dtype)
