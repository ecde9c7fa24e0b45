"""Token ids to vectors, and vectors to logits."""

import torch
import torch.nn.functional as F

from engine.layers.eight import W8
from engine.layers.linear import Linear, Wide
from engine.team.group import Group


class Embedding:
    def __init__(
        self, table: torch.Tensor, *, first: int = 0, vocabulary: int | None = None
    ) -> None:
        """``table`` has the tokens from ``first`` on, of a ``vocabulary`` of more if given."""
        self.table = table  # [V, H]
        self._first = first
        most = len(table) if vocabulary is None else vocabulary - first
        self._count = min(len(table), most)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T] ids to [T, H] activations, in memory of their own."""
        return F.embedding(tokens, self.table)

    def addend(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same, zeros where another member of the team has the token."""
        at = tokens - self._first
        found = F.embedding(at.clamp(0, len(self.table) - 1), self.table)
        mine = (at >= 0) & (at < self._count)
        return found.masked_fill_(~mine.unsqueeze(1), 0.0)


class Head:
    def __init__(self, linear: Linear, vocabulary: int | None = None) -> None:
        """``vocabulary``: of the team, whose members have a part of it each."""
        self.linear = linear
        self._vocabulary: int | None = vocabulary
        self._group: Group | None = None

    def join(self, group: Group) -> None:
        """From now on every member computes the same rows and has all logits of them."""
        self._group = group

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[B, H] to float32 logits [B, V], in ``out`` if given."""
        if self._group is None or not len(x):
            return self._own(x, out)
        assert self._vocabulary is not None, "a member's head knows its team's vocabulary"
        logits = self._group.side_by_side(self._own(x), self._vocabulary)
        return logits if out is None else out.copy_(logits)

    def _own(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        x = x.to(self.linear.dtype)
        if isinstance(self.linear, Wide):
            return self.linear(x, out)
        logits = self.linear.wide(x) if isinstance(self.linear, W8) else self.linear(x).float()
        return logits if out is None else out.copy_(logits)
