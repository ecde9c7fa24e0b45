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

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[B, H] to float32 logits [B, V], in ``out`` if given."""
        x = x.to(self.linear.dtype)
        if x.is_cuda and isinstance(self.linear, Dense) and self.linear.bias is None:
            # 16-bit logits are too coarse: exact ties occur
            weight = self.linear.weight.t()
            if out is not None:
                return torch.mm(x, weight, out_dtype=torch.float32, out=out)
            return torch.mm(x, weight, out_dtype=torch.float32)
        logits = self.linear(x).float()
        return logits if out is None else out.copy_(logits)
