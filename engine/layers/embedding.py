"""Token ids to vectors, and vectors to logits."""

import torch
import torch.nn.functional as F

from engine.layers.linear import Dense, Linear


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
        x = x.to(self.linear.dtype)
        if x.is_cuda and isinstance(self.linear, Dense) and self.linear.bias is None:
            # 16-bit logits are too coarse: exact ties occur
            return torch.mm(x, self.linear.weight.t(), out_dtype=torch.float32)
        return self.linear(x).float()
