"""Token ids to vectors, and vectors to logits."""

import torch
import torch.nn.functional as F

from engine.layers.eight import W8
from engine.layers.linear import Linear, Wide


class Embedding:
    def __init__(self, table: torch.Tensor) -> None:
        self.table = table  # [V, H]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T] ids to [T, H] activations, in memory of their own."""
        return F.embedding(tokens, self.table)


class Head:
    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[B, H] to float32 logits [B, V], in ``out`` if given."""
        x = x.to(self.linear.dtype)
        if isinstance(self.linear, Wide):
            return self.linear(x, out)
        logits = self.linear.wide(x) if isinstance(self.linear, W8) else self.linear(x).float()
        return logits if out is None else out.copy_(logits)
