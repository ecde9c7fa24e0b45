"""``y = x Wᵀ + b`` on CUDA over a weight of a byte a number.

Several parts where fused modules were quantised apart: groups of their own, or row orders. ``Wide``
results are float32, for logits.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from engine.quant.bytewise import Float8
from engine.quant.formats import Quantised
from kernels.matmul_w8a16 import matmul_w8a16, matmul_w8a16_parts
from kernels.w8_weight import W8Weight

GROUP = 32  # rows of the smallest group, of which others are multiples
HALF = 128  # what codes of integers have more than the integers


class W8:
    def __init__(
        self,
        parts: Sequence[W8Weight],
        *,
        dtype: torch.dtype,
        bias: torch.Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        self.size = (parts[0].rows, sum(part.columns for part in parts))
        self.dtype = dtype
        self._parts, self._bias, self._deterministic = parts, bias, deterministic

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._whole(x, x.dtype)

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """In float32."""
        return self._whole(x, torch.float32)

    def parts(self, x: torch.Tensor, *, chain: bool = True) -> torch.Tensor:
        """Addends [P, T, N] of the result: float32, or of its type where P is 1."""
        if len(self._parts) > 1 or self._deterministic:
            return self(x).unsqueeze(0)  # one rounding, adapters in the batch or not
        return matmul_w8a16_parts(x, self._parts[0], bias=self._bias, chain=chain)

    def _whole(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        found = [
            matmul_w8a16(x, part, dtype=dtype, deterministic=self._deterministic)
            for part in self._parts
        ]
        y = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        return y if self._bias is None else y.add_(self._bias)


def fits(weight: Quantised | Float8) -> bool:
    """Whether the kernel takes it: 8 bits, groups of whole columns or of a multiple of 32 rows."""
    if isinstance(weight, Float8):
        return weight.group >= weight.values.shape[1] or weight.group % GROUP == 0
    return weight.bits == 8


def fuse_bytes(weights: Sequence[W8Weight]) -> list[W8Weight]:
    """One weight where the modules are stored alike, else those given."""
    if len(weights) == 1 or not all(_alike(a, b) for a, b in pairwise(weights)):
        return list(weights)
    first = weights[0]
    zeros = [w.zeros for w in weights if w.zeros is not None]
    return [
        W8Weight(
            values=torch.cat([w.values for w in weights]),
            scales=torch.cat([w.scales for w in weights], dim=1),
            zeros=torch.cat(zeros, dim=1) if zeros else None,
            group=first.group,
            perm=first.perm,
        )
    ]


def _alike(a: W8Weight, b: W8Weight) -> bool:
    if a.values.dtype != b.values.dtype or a.group != b.group:
        return False
    if (a.zeros is None) != (b.zeros is None) or (a.perm is None) != (b.perm is None):
        return False
    return a.perm is None or b.perm is None or torch.equal(a.perm, b.perm)


def pack_bytes(weight: Quantised | Float8, device: torch.device) -> W8Weight:
    """Into the kernel's layout, on the device."""
    if isinstance(weight, Float8):
        return W8Weight(
            values=weight.values.to(device).contiguous(),
            scales=weight.scales.t().to(device).contiguous(),
            group=min(weight.group, weight.values.shape[1]),
        )
    zeros = weight.zeros.to(device) - HALF
    codes = weight.codes.to(device).t().contiguous()
    return W8Weight(
        values=(codes ^ HALF).view(torch.int8),
        scales=weight.scales.to(device, torch.float32).contiguous(),
        zeros=zeros.contiguous() if bool(zeros.any()) else None,
        group=weight.group,
        perm=None if weight.perm is None else weight.perm.to(device),
    )
