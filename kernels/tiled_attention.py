"""Attention on a CPU whose rows cannot influence each other's rounding.

Every product has the same shape, [16 queries, D] by [64 keys, D], whatever the batch, the chunk
or the context; tiles are joined by the online softmax in order of position. A tile that a query
does not see leaves its state unchanged to the bit (the factor is exactly 1, the addend 0), so
the context of a neighbour does not matter, nor does the place of a query in a chunk.

    q        [N, 16, D]  float32, scaled; N independent tiles of queries
    last     [N, 16]     int64, position of the last key each query sees; -1 for padding
    window   keys a query sees, counted back from the last; 0 means all
    fetch    keys and values [N, 64, D] float32 of tile i; N may be an expanded dimension
"""

from collections.abc import Callable

import torch

QUERIES, KEYS = 16, 64
_HIDDEN = -1e30  # finite, so that a fully hidden tile gives 0 and not NaN

Fetch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def attend(
    q: torch.Tensor, last: torch.Tensor, tiles: range, fetch: Fetch, *, window: int
) -> torch.Tensor:
    """[N, 16, D] float32: softmax(q k^T) v over the keys each query sees; zero for padding."""
    maximum = torch.full((*q.shape[:2], 1), _HIDDEN)
    total = torch.zeros_like(maximum)
    acc = torch.zeros_like(q)
    offsets = torch.arange(KEYS)
    for tile in tiles:
        k, v = fetch(tile)
        hidden = _hidden(offsets + tile * KEYS, last, window)  # [N, 16, 64]
        scores = torch.bmm(q, k.transpose(1, 2)).masked_fill_(hidden, _HIDDEN)
        peak = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        weights = scores.sub_(peak).exp_().masked_fill_(hidden, 0.0)
        decay = maximum.sub_(peak).exp_()
        total = total.mul_(decay).add_(weights.sum(-1, keepdim=True))
        acc = acc.mul_(decay).add_(torch.bmm(weights, v))
        maximum = peak
    return acc.div_(total.clamp_min_(1e-30))


def tiles_seen(first: int, last: int) -> range:
    """The tiles that hold positions first .. last."""
    return range(max(first, 0) // KEYS, last // KEYS + 1)


def gather_pages(kv: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values [B, KVH, n PS, D] of pages [B, n]."""
    B, n = pages.shape
    _, _, KVH, PS, D = kv.shape
    heads = torch.arange(KVH)[:, None]
    k, v = kv[pages[:, None], 0, heads], kv[pages[:, None], 1, heads]
    return k.view(B, KVH, n * PS, D), v.view(B, KVH, n * PS, D)


def tile_fetcher(k: torch.Tensor, v: torch.Tensor, last: torch.Tensor, repeats: int) -> Fetch:
    """Tiles [B KVH repeats, 64, D] of gathered keys and values, zero past each sequence's last."""
    B, KVH, S, D = k.shape

    def fetch(tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin, end = tile * KEYS, min((tile + 1) * KEYS, S)
        past = (torch.arange(begin, end) > last[:, None])[:, None, :, None]
        pair = []
        for source in (k, v):
            part = source.new_zeros((B, KVH, KEYS, D), dtype=torch.float32)
            part[:, :, : end - begin] = source[:, :, begin:end].masked_fill(past, 0.0)
            wide = part.view(B * KVH, 1, KEYS, D).expand(-1, repeats, -1, -1)
            pair.append(wide.reshape(-1, KEYS, D))
        return pair[0], pair[1]

    return fetch


def _hidden(positions: torch.Tensor, last: torch.Tensor, window: int) -> torch.Tensor:
    behind = last.unsqueeze(-1) - positions  # [N, 16, 64]: how far each key lies back
    return (behind < 0) if window == 0 else (behind < 0) | (behind >= window)
