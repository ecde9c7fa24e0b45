"""Token ids to vectors, and vectors to logits."""

import torch
import torch.nn.functional as F

from engine.layers.linear import Linear


class Embedding:
    def __init__(self, table: torch.Tensor) -> None:
        self.table = table  # [V, H]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T] ids to [T, H] activations, in memory of their own."""
        return F.embedding(tokens, self.table)


class Head:
    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, H] to float32 logits [B, V]."""
        return self.linear(x.to(self.linear.dtype)).float()
