"""Adds each row's adapter to the output of a Linear: ``y += (x Aᵀ) Bᵀ``.

A ``LoraPass`` is what the layers of one forward pass share: the page pool the matrices lie in, the
device table that finds them, and which rows belong to which adapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.layers.linear import Linear, parts
from engine.layers.stacked import StackedRows
from engine.outer import OuterPass
from kernels.lora_expand import lora_expand
from kernels.lora_shrink import lora_shrink
from kernels.lora_table import LoraSite
from kernels.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPass:
    pool: torch.Tensor  # flat
    sites: Sequence[Mapping[str, LoraSite]]  # per layer
    segments: Segments
    deterministic: bool = False
    stacked: StackedRows | None = None  # on CPU: the batch's adapters side by side
    outer: OuterPass | None = None  # when adapters of the table change embeddings or head


class Adapted:
    """A Linear that adapters may change: ``site`` of ``layer`` in the adapter table."""

    def __init__(self, linear: Linear, layer: int, site: str) -> None:
        self.linear, self._layer, self._site = linear, layer, site

    def __call__(self, x: torch.Tensor, lora: LoraPass | None) -> torch.Tensor:
        """[T, K] to addends [P, T, N] of the result; see ``linear.parts``.

        Rows of the base model are the Linear's own, bit for bit.
        """
        if lora is None:
            return parts(self.linear, x)
        y = self.linear(x)
        if lora.stacked is not None:
            lora.stacked.add(x, y, self._layer, self._site)
        else:
            site = lora.sites[self._layer][self._site]
            exact = lora.deterministic
            h = lora_shrink(x, lora.pool, site, lora.segments, deterministic=exact)
            lora_expand(h, lora.pool, site, lora.segments, y, deterministic=exact)
        return y.unsqueeze(0)
