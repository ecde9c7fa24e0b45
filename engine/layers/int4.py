"""``y = x Wᵀ + b`` on a CPU over the 4-bit codes themselves.

A decode step on a CPU takes as long as its weights take to read, and codes are a quarter of
bfloat16. torch's own operator widens them in registers and treats every row alike, whoever stands
beside it; from some 16 rows on, the matrix unit on bfloat16 is faster (measured on 2 cores with
AVX512-BF16 and AMX, shapes of a 135M model: 0.25 of the time at 1 row, 0.8 at 8, 1.2 at 16).
"""

import numpy as np
import numpy.typing as npt
import torch

from engine.layers.linear import Linear
from engine.quant.formats import Quantised

GROUPS = (256, 128, 64, 32)  # rows of a group the operator takes
COLUMNS = 16  # a multiple of which N must be
MIDDLE = 8  # the code that stands for the group's zero
FEW = 16  # rows; beyond them bfloat16 weights are faster

Indices = npt.NDArray[np.int64]


class Int4:
    """Rows do not depend on each other. ``fits`` says which weights it can hold."""

    def __init__(self, weight: Quantised, bias: torch.Tensor | None = None) -> None:
        K, N = weight.codes.shape
        self.size, self.dtype = (K, N), torch.bfloat16
        self._bias = bias
        self._perm = None if weight.perm is None else weight.perm.numpy()
        self._group = _group(weight.group)
        codes = weight.codes.t().to(torch.int32).contiguous()
        self._codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self._factors = _factors(weight, self._group)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._perm is not None:
            x = _columns(x, self._perm)
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self._codes, self._group, self._factors
        )
        return y if self._bias is None else y.add_(self._bias)

    @classmethod
    def fits(cls, weight: Quantised) -> bool:
        K, N = weight.codes.shape
        return weight.bits == 4 and K % 32 == 0 and N % COLUMNS == 0 and bool(_group(weight.group))

    @classmethod
    def usable(cls) -> bool:
        """Tries a small weight: the operators are torch's own but not documented."""
        random = torch.Generator().manual_seed(0)
        weight = Quantised(
            codes=torch.randint(0, 16, (64, 32), dtype=torch.uint8, generator=random),
            scales=torch.rand((2, 32), generator=random),
            zeros=torch.randint(0, 17, (2, 32), dtype=torch.int16, generator=random),
            group=32,
        )
        x = torch.randn((3, 64), generator=random).bfloat16()
        try:
            y = cls(weight)(x).float()
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
        expected = x.float() @ weight.dense().t()
        return bool((y - expected).norm() < 0.01 * expected.norm())


class FewOrMany:
    """The same weight twice: as codes for few rows, dense for many."""

    def __init__(self, few: Int4, many: Linear) -> None:
        self.size, self.dtype = few.size, few.dtype
        self._few, self._many = few, many

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._few(x) if x.shape[0] <= FEW else self._many(x)


def _columns(x: torch.Tensor, order: Indices) -> torch.Tensor:
    """x[:, order] of bfloat16. numpy takes half the time of index_select (measured at 8 rows)."""
    taken = x.view(torch.int16).numpy().take(order, axis=1)
    return torch.from_numpy(taken).view(x.dtype)


def _group(rows: int) -> int:
    """The largest group the operator takes that divides this one; 0 if there is none."""
    return next((group for group in GROUPS if rows % group == 0), 0)


def _factors(weight: Quantised, group: int) -> torch.Tensor:
    """[K / group, N, 2] bfloat16: w = (code - 8) * scale + zero."""
    repeats = weight.group // group
    scales = weight.scales.float().bfloat16().float()  # what the codes will be scaled with
    offsets = (MIDDLE - weight.zeros.float()) * scales
    both = torch.stack([scales, offsets], dim=-1).bfloat16()
    return both.repeat_interleave(repeats, dim=0).contiguous()
