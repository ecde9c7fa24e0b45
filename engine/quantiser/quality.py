"""What quantising cost, as our own loader reads both checkpoints: perplexity and logit errors.

Both models are computed by their definition in float32 (``engine.bench.reference``), a layer at a
time, on held-out text.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from engine.bench.reference import Reference
from engine.checkpoint import Checkpoint

BATCH = 4  # sequences computed together: all logits of one are vocabulary times length


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    tokens: int  # predicted
    perplexity: float
    source_perplexity: float
    mean_kl: float  # nats, of the source's distribution from the result's
    worst_kl: float
    rms_error: float  # of centred logits
    relative_error: float  # that, by the centred logits' own root mean square
    agreement: float  # share of positions with the same likeliest token

    def __str__(self) -> str:
        ratio = self.perplexity / self.source_perplexity
        return (
            f"perplexity {self.perplexity:.2f}, source {self.source_perplexity:.2f} ({ratio:.3f}x);"
            f" logits off by {self.rms_error:.3f} ({self.relative_error:.1%}),"
            f" KL {self.mean_kl:.4f}, same likeliest token {self.agreement:.1%}"
            f" over {self.tokens} tokens"
        )


def compare(
    source: Path, result: Path, rows: Sequence[Sequence[int]], progress: Callable[[float], None]
) -> Quality:
    """``rows``: token ids of sequences, each of two tokens or more. Raises CheckpointInvalid."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = [Reference(Checkpoint(path), device) for path in (source, result)]
    found = Sums()
    batches = list(_batches(rows))
    for done, batch in enumerate(batches):
        before, after = (model.logits(batch, [None] * len(batch)) for model in models)
        for ids, p, q in zip(batch, before, after, strict=True):
            found.add(ids, p, q)
        progress((done + 1) / len(batches))
    return found.quality


@dataclass(slots=True)
class Sums:
    """Over sequences, of logits as they should be and as they are."""

    source: float = 0.0  # nats
    result: float = 0.0
    kl: float = 0.0
    square: float = 0.0
    own: float = 0.0
    same: float = 0.0
    worst: float = 0.0
    tokens: int = 0
    elements: int = 0

    def add(self, ids: Sequence[int], p: torch.Tensor, q: torch.Tensor) -> None:
        """``p`` as they should be, ``q`` as they are: [T, V] after each token of ``ids``."""
        target = torch.tensor(ids[1:], device=p.device)
        p, q = _centred(p[:-1]), _centred(q[:-1])
        self.source += functional.cross_entropy(p, target, reduction="sum").item()
        self.result += functional.cross_entropy(q, target, reduction="sum").item()
        kl = functional.kl_div(
            q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="none"
        ).sum(-1)
        self.kl += kl.sum().item()
        self.worst = max(self.worst, kl.max().item())
        self.square += (p - q).square().sum().item()
        self.own += p.square().sum().item()
        self.same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        self.tokens, self.elements = self.tokens + len(target), self.elements + p.numel()

    @property
    def quality(self) -> Quality:
        return Quality(
            tokens=self.tokens,
            perplexity=math.exp(self.result / self.tokens),
            source_perplexity=math.exp(self.source / self.tokens),
            mean_kl=self.kl / self.tokens,
            worst_kl=self.worst,
            rms_error=math.sqrt(self.square / self.elements),
            relative_error=math.sqrt(self.square / self.own),
            agreement=self.same / self.tokens,
        )


def _centred(logits: torch.Tensor) -> torch.Tensor:
    """A constant added to all logits of a position changes nothing."""
    return logits - logits.mean(dim=-1, keepdim=True)


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]
