"""The two vectors per linear layer that some adapters need, from the base's own weights.

    y' = (y + B A x) * (1 + gain) + bias

DoRA scales each output to a trained norm, so its gain depends on the norms of the base's rows; a
bias that replaces the base's is added as their difference. Both are found by asking the base's
layers: what a layer answers to zeros is its bias, what it answers to unit vectors is its weight.
"""

from collections.abc import Mapping, Sequence

import torch

from adapters.pack import Factor
from engine.errors import AdapterUnusable
from engine.layers.linear import Linear
from engine.team.group import Group

CUT_BY_INPUTS = ("o", "down")  # sites
UNITS = 1024  # unit vectors asked at a time


class BaseVectors:
    """Belongs to the engine loop's thread. Remembers norms: 5 MB for a model of 8B.

    In a team a member that reads a part of a linear's inputs has a part of each row: squares are
    added up over the members, who all ask for the same at the same time.
    """

    def __init__(
        self,
        layers: Sequence[Mapping[str, Linear]],
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        """``layers``: of each decoder layer, the linear of each site."""
        self._layers, self._device, self._group = layers, device, group
        self._squares: dict[tuple[int, str], torch.Tensor] = {}  # [N] float32, on the CPU

    @torch.inference_mode()
    def vectors(
        self, factor: Factor, layer: int, site: str, columns: slice
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(gain, bias) float32 [N] on the CPU, each None when the factor has no use for it.

        ``columns``: the factor's outputs among those of the site. Raises AdapterUnusable.
        """
        own = self._bias(layer, site)[columns]
        kept = own if factor.bias is None else factor.bias
        gain = None
        bias = kept - own
        if factor.magnitude is not None:
            norms = self._norms(factor, layer, site, columns, own)
            scale = factor.magnitude / norms
            fine = bool(scale.isfinite().all())
            if not (fine if self._group is None else self._group.agreed(fine)):
                raise AdapterUnusable(f"layer {layer} {site}: a DoRA norm is zero or not finite")
            gain, bias = scale - 1, kept - scale * own
        if factor.lora_bias is not None:
            bias = bias + factor.lora_bias
        return gain, bias if factor.biased else None

    def _norms(
        self, factor: Factor, layer: int, site: str, columns: slice, own: torch.Tensor
    ) -> torch.Tensor:
        """Of the rows of W + B A, without making it."""
        linear = self._layers[layer][site]
        a, b = factor.a.float(), factor.b.float()
        crossed = self._ask(linear, a)[:, columns] - own  # A Wᵀ, [r, N]
        squares = self._base_squares(layer, site)[columns]
        squares = squares + 2 * (b * crossed.t()).sum(1) + ((b @ (a @ a.t())) * b).sum(1)
        if self._group is not None and site in CUT_BY_INPUTS:
            squares = self._group.add_up(squares.to(self._device)).cpu()
        return squares.clamp(min=0).sqrt()

    def _base_squares(self, layer: int, site: str) -> torch.Tensor:
        if (layer, site) not in self._squares:
            linear, own = self._layers[layer][site], self._bias(layer, site)
            inputs, outputs = linear.size
            total = torch.zeros(outputs)
            for first in range(0, inputs, UNITS):
                units = torch.zeros((min(UNITS, inputs - first), inputs))
                units[torch.arange(len(units)), first + torch.arange(len(units))] = 1.0
                total += (self._ask(linear, units) - own).square().sum(0)
            self._squares[layer, site] = total
        return self._squares[layer, site]

    def _bias(self, layer: int, site: str) -> torch.Tensor:
        linear = self._layers[layer][site]
        return self._ask(linear, torch.zeros((1, linear.size[0])))[0]

    def _ask(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(x.to(self._device, linear.dtype)).float().cpu()
