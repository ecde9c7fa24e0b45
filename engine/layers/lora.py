"""Adds each row's adapter to the output of a Linear: ``y += (x Aᵀ) Bᵀ``.

A ``LoraPass`` is what the layers of one forward pass share: the page pool the matrices lie in, the
device table that finds them, and which rows belong to which adapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.layers.beside import Beside
from engine.layers.linear import W4, Linear, parts
from engine.layers.signals import Signals
from engine.layers.stacked import StackedRows
from engine.outer import OuterPass
from kernels.lora_expand import lora_addend, lora_expand
from kernels.lora_shrink import hidden_shape, lora_shrink
from kernels.lora_table import LoraSite
from kernels.segments import Segments

FEW_ROWS = 512  # up to here what adapters add is made beside the base's product
YIELDING_ROWS = 128  # up to here the base's product lets it go first


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPass:
    pool: torch.Tensor  # flat
    sites: Sequence[Mapping[str, LoraSite]]  # per layer
    segments: Segments
    deterministic: bool = False
    stacked: StackedRows | None = None  # on CPU: the batch's adapters side by side
    outer: OuterPass | None = None  # when adapters of the table change embeddings or head
    signals: Signals | None = None  # where adapters' kernels may run at once with the base's
    beside: Beside | None = None  # the same, for products that cannot await a signal


@dataclass(frozen=True, slots=True)
class Addends:
    """The output of a Linear, [T, N], not added up yet. See ``kernels.planes``."""

    planes: torch.Tensor  # [P, T, N]
    addend: torch.Tensor | None = None  # [T, N]
    chain: bool = True  # whether one stream made them, so that their reader may be chained


class Adapted:
    """A Linear that adapters may change: ``site`` of ``layer`` in the adapter table."""

    def __init__(self, linear: Linear, layer: int, site: str) -> None:
        self.linear, self._layer, self._site = linear, layer, site

    def __call__(self, x: torch.Tensor, lora: LoraPass | None) -> Addends:
        """x is [T, K]. Rows of the base model are the Linear's own, bit for bit."""
        if lora is None:
            return Addends(parts(self.linear, x))
        site = lora.sites[self._layer][self._site]
        few = x.is_cuda and x.shape[0] <= FEW_ROWS
        if few and site.scale_units is None and not lora.deterministic:
            return self._beside(x, lora, site)
        y = self.linear(x)
        if lora.stacked is not None:
            lora.stacked.add(x, y, self._layer, self._site)
        else:
            exact = lora.deterministic
            h = lora_shrink(x, lora.pool, site, lora.segments, deterministic=exact)
            lora_expand(h, lora.pool, site, lora.segments, y, deterministic=exact)
        return Addends(y.unsqueeze(0))

    def _beside(self, x: torch.Tensor, lora: LoraPass, site: LoraSite) -> Addends:
        """All memory is taken, and given back, on the pass's own stream."""
        shape = hidden_shape(site, x.shape[0], deterministic=False)
        h = torch.empty(shape, dtype=torch.float32, device=x.device)
        addend = torch.empty((x.shape[0], site.columns), dtype=x.dtype, device=x.device)
        base, pool, rows = self.linear, lora.pool, lora.segments
        if lora.signals is not None and isinstance(base, W4) and base.awaits_signals(x):
            signals = lora.signals.of(self._layer, self._site)
            lora_shrink(x, pool, site, rows, out=h, deterministic=False, signals=signals)
            planes = base.parts(x, signals=signals)
            lora_addend(h, pool, site, rows, addend, signals=signals)
            return Addends(planes, addend)
        beside = lora.beside or Beside(None)  # a product that cannot await anything
        with beside:
            lora_shrink(x, pool, site, rows, out=h, deterministic=False)
            lora_addend(h, pool, site, rows, addend)
        # Chained, the product would be first to fill the device, and the adapters' work come after.
        planes = parts(base, x, chain=lora.beside is None or x.shape[0] > YIELDING_ROWS)
        beside.join()
        return Addends(planes, addend, chain=lora.beside is None)
