"""Attention on a CPU: pages gathered into rows, and a form whose rows cannot influence each other.

In that form every product has the same shape, [16 queries, D] by [64 keys, D], whatever the
batch, the chunk or the context; tiles of keys are joined by the online softmax in order of
position. A tile that a query does not see leaves its state unchanged to the bit (the factor is
exactly 1, the addend 0), so neither a neighbour's context nor a query's place in a chunk matters.

    q     [H, C, 16, D]  float32, scaled; C tiles of queries on each of H rows of keys
    last  [H, C, 16]     int64, position of the last key each query sees
    k, v  [H, S, D]      float32; S a multiple of 64
"""

from collections.abc import Sequence

import torch

from kernels.e4m3 import from_e4m3
from kernels.launch import cdiv, require, round_up

QUERIES, KEYS = 16, 64
_HIDDEN = -1e30  # finite, so that a tile without a visible key gives 0 and not NaN


def gather_pages(
    kv: torch.Tensor,
    page_table: torch.Tensor,
    lengths: Sequence[int],
    magnitudes: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values [B, KVH, S, D], S a multiple of 64.

    ``dtype`` is kv's own but for 8 bits, which ``magnitudes`` (see ``e4m3``) make into it.

    Past its length a sequence holds zeros, not what another owner of a page left there: a NaN
    counts even with a weight of 0.
    """
    P, _, KVH, PS, D = kv.shape
    n = round_up(max(lengths), max(PS, KEYS)) // PS
    column = torch.arange(n)
    counts = torch.tensor([[cdiv(length, PS)] for length in lengths])
    pages = page_table.long().gather(1, torch.where(column < counts, column, 0))
    step = kv.stride(0) // (PS * D)
    require(kv.stride(0) == step * PS * D, "kv: a page must be a whole number of tiles")
    index = pages[:, None] * step + torch.arange(2 * KVH)[:, None]  # [B, 2 KVH, n]
    tiles = kv.as_strided(((P - 1) * step + 2 * KVH, PS * D), (PS * D, 1))
    if magnitudes is None:
        both = tiles.index_select(0, index.view(-1))
    else:
        codes = tiles.view(torch.uint8).index_select(0, index.view(-1)).view(kv.dtype)
        sizes = magnitudes[pages].permute(0, 2, 3, 1, 4)  # [B, 2, KVH, n, PS]
        both = from_e4m3(codes.view(-1, D), sizes.reshape(-1), dtype)
    both = both.view(len(lengths), 2 * KVH, n * PS, D)
    for b, length in enumerate(lengths):
        both[b, :, length:].zero_()
    return both[:, :KVH], both[:, KVH:]


def attend(
    q: torch.Tensor, last: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int
) -> torch.Tensor:
    """softmax(q k^T) v over the last `window` keys each query sees (0: all), [H, C, 16, D]."""
    H, C, _, _ = q.shape
    if C == 1:
        return _join(q[:, 0], last[:, 0], k, v, window).unsqueeze(1)
    rows = [
        _join(q[h], last[h], k[h].expand(C, -1, -1), v[h].expand(C, -1, -1), window)
        for h in range(H)
    ]
    return torch.stack(rows)


def _join(
    q: torch.Tensor, last: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
) -> torch.Tensor:
    """N tiles of queries [N, 16, D] on N (or one, expanded) rows of keys [N, S, D]."""
    top = torch.full((*q.shape[:2], 1), _HIDDEN)
    total = torch.zeros_like(top)
    acc = torch.zeros_like(q)
    nearest, farthest = last.amin(1).tolist(), last.amax(1).tolist()
    begin = max(0, min(nearest) - window + 1) // KEYS * KEYS if window else 0
    first = 0
    for at in range(begin, max(farthest) + 1, KEYS):
        while farthest[first] < at:  # leading tiles of queries that are done
            first += 1
        span, mine = slice(at, at + KEYS), slice(first, None)
        scores = torch.bmm(q[mine], k[mine, span].transpose(1, 2))
        partial = window > 0 or min(nearest[first:]) < at + KEYS - 1
        hidden = _hidden(at, last[mine], window) if partial else None
        if hidden is not None:
            scores.masked_fill_(hidden, _HIDDEN)
        peak = torch.maximum(top[mine], scores.amax(-1, keepdim=True))
        weights = scores.sub_(peak).exp_()
        if hidden is not None:
            weights.masked_fill_(hidden, 0.0)
        decay = (top[mine] - peak).exp_()
        total[mine] = total[mine].mul_(decay).add_(weights.sum(-1, keepdim=True))
        acc[mine] = acc[mine].mul_(decay).add_(torch.bmm(weights, v[mine, span]))
        top[mine] = peak
    return acc.div_(total)


def _hidden(at: int, last: torch.Tensor, window: int) -> torch.Tensor:
    behind = last.unsqueeze(-1) - torch.arange(at, at + KEYS)  # [N, 16, 64], distance of each key
    return (behind < 0) if window == 0 else (behind < 0) | (behind >= window)
