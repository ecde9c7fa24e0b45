"""Draw one token per row.

    logits       [B, V]  float32
    temperature  [B]     float32; 0 takes the largest logit, the lowest id among equals
    top_k        [B]     int32; 0 or at least V: no limit
    top_p        [B]     float32 in (0, 1]
    min_p        [B]     float32 in [0, 1]; 0: no limit
    uniform      [B]     float32 in [0, 1)
    token        [B]     int64

In this order: logits / temperature; keep those not below the k-th largest; of these keep a token
if the tokens strictly more likely hold less than top_p of the mass; of these keep a token if its
probability is at least min_p times the largest. So equal logits are kept or dropped together.
The token is the first, in vocabulary order, at which the running sum of the kept probabilities
exceeds ``uniform`` times their total.

A row with NaN, or without a finite logit, yields some token; the caller must check.
"""

import torch

_CANDIDATES = 256  # most likely tokens looked at first; beyond them the row is sorted


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """One token per row, [B] int64."""
    return _sample_torch(logits, temperature, top_k, top_p, min_p, uniform)


def _sample_torch(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    token = logits.argmax(dim=1)
    for row in torch.nonzero(temperature > 0).flatten().tolist():
        weights = torch.sub(logits[row], logits[row, token[row]]).div_(temperature[row]).exp_()
        limits = int(top_k[row]), float(top_p[row]), float(min_p[row])
        threshold = _threshold(weights, *limits)
        if threshold > 0:
            weights.masked_fill_(weights < threshold, 0.0)
        total = weights.cumsum(0, dtype=torch.float64)
        index = torch.searchsorted(total, total[-1] * float(uniform[row]), right=True)
        token[row] = torch.minimum(index, torch.searchsorted(total, total[-1]))
    return token


def _threshold(weights: torch.Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """The smallest weight that is kept; weights are relative to the largest, which is 1."""
    limit = top_k if 0 < top_k < weights.numel() else weights.numel()
    if limit == weights.numel() and top_p >= 1.0:
        return min_p
    count = min(max(_CANDIDATES, top_k), weights.numel())
    best = weights.topk(count).values
    by_k = float(best[limit - 1]) if limit <= count else 0.0
    if top_p >= 1.0:
        return max(by_k, min_p)
    mass = float(weights.masked_fill(weights < by_k, 0.0).sum(dtype=torch.float64)) * top_p
    if float(best.sum(dtype=torch.float64)) < mass:
        best = weights.sort(descending=True).values
    above = best.cumsum(0, dtype=torch.float64) - best
    kept = int(torch.count_nonzero((above < mass) & (best >= by_k)))
    return max(float(best[max(kept, 1) - 1]), min_p)


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
