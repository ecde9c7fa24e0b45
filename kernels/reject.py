"""Which drafts are kept, and what comes after them: rejection sampling.

    target   [B, K + 1, V]  float32, probabilities of each row after temperature and cuts; one-hot
                            where the most likely token is wanted
    drafts   [B, K]         int64
    lengths  [B]            int32, drafts of each row, the first ones
    source   [B, K, V]      float32, what each draft was drawn from; None: it was certain
    accept   [B, K]         float32 in [0, 1)
    uniform  [B, K + 1]     float32 in [0, 1)
    tokens   [B, K + 1]     int64; past kept + 1: -1
    kept     [B]            int64, drafts that are kept, the first ones

A draft x is kept with probability min(1, p(x) / q(x)), if all before it are. The first that is not
is replaced by a draw from max(p - q, 0); if all are kept, one more token is drawn from p. Then the
tokens are distributed as if drawn from p one by one, whatever q is (Leviathan et al. 2023).

Of a certain draft that is: p(x), and p without x. Drawing from p and keeping the draft while the
draw is the draft does the same with one random number (``kept_of``), and the very tokens that
drawing one by one yields: this is what the engine does.
"""

import torch


def kept_of(drawn: torch.Tensor, drafts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[B] int64: how many drafts equal what was drawn in their place, up to the first that does
    not. ``drawn`` [B, K or more]."""
    K = drafts.shape[1]
    inside = torch.arange(K, device=drafts.device) < lengths.unsqueeze(1)
    same = (drawn[:, :K] == drafts) & inside
    return same.to(torch.int64).cumprod(1).sum(1)


def reject(
    target: torch.Tensor,
    drafts: torch.Tensor,
    lengths: torch.Tensor,
    source: torch.Tensor | None,
    accept: torch.Tensor,
    uniform: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, kept)."""
    B, K = drafts.shape
    inside = torch.arange(K, device=drafts.device) < lengths.unsqueeze(1)
    p = target[:, :K].gather(2, drafts.unsqueeze(2)).squeeze(2)
    q = torch.ones_like(p) if source is None else _chance(source, drafts)
    keeps = inside & (accept * q < p)
    kept = keeps.to(torch.int64).cumprod(1).sum(1)
    rows = torch.arange(B, device=drafts.device)
    left = target[rows, kept]
    refused = kept < lengths
    at = kept.clamp(max=max(K - 1, 0))
    if source is not None:
        left = torch.where(refused.unsqueeze(1), (left - source[rows, at]).clamp(min=0.0), left)
    elif K:
        left = left.scatter(
            1, drafts[rows, at].unsqueeze(1), left.gather(1, drafts[rows, at].unsqueeze(1))
            .masked_fill(refused.unsqueeze(1), 0.0),
        )  # fmt: skip
    last = _draw(left, uniform[rows, kept])
    place = torch.arange(K + 1, device=drafts.device)
    tokens = torch.nn.functional.pad(drafts, (0, 1), value=-1)
    tokens = torch.where(place < kept.unsqueeze(1), tokens, -1)
    return tokens.scatter(1, kept.unsqueeze(1), last.unsqueeze(1)), kept


def _chance(source: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    return source.gather(2, drafts.unsqueeze(2)).squeeze(2)


def _draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """[B] the first token at which the running sum exceeds its share of the whole."""
    sums = weights.double().cumsum(1)
    goal = sums[:, -1:] * uniform.double().unsqueeze(1)
    found = (sums <= goal).sum(1)
    last = (weights > 0).long().mul(torch.arange(weights.shape[1], device=weights.device)).amax(1)
    return torch.minimum(found, last)
