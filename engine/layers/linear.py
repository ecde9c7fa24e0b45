"""``y = x Wᵀ + b`` over a weight that is dense, prepacked for the CPU, or of 8 or 4 bits.

A ``Linear`` is a callable on [T, K] that returns a new [T, N]; ``parts`` gives the same as addends
[P, T, N] where that saves adding them up before they are read. Fused modules (q, k and v; gate and
up) are one Linear over their concatenated outputs.

    Dense      any dtype, any device: F.linear
    Prepacked  on CPU: the weight is reordered once into the library's own blocks. Measured on 2
               cores with AVX512-BF16: 40 % off the bf16 layers of a decode step, with the same
               bits as F.linear; half off a float32 head at 8 rows
    W8         of 8 bits on CUDA, see ``eight``
    Reading    over inputs in an order of its own, which it gathers
    W4         4-bit on CUDA, by kernels.matmul_w4a16; several parts where fused modules were
               quantised apart (different groups or row orders)
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from engine.layers.eight import W8
from engine.quant.formats import Quantised
from kernels.matmul_w4a16 import awaits_signals, matmul_w4a16, matmul_w4a16_parts
from kernels.w4_weight import SYMMETRIC_ZERO, W4Weight, pack_w4


class Linear(Protocol):
    """Belongs to the engine loop's thread, like every layer."""

    @property
    def size(self) -> tuple[int, int]:
        """(K inputs, N outputs)."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations it takes."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def parts(linear: Linear, x: torch.Tensor, *, chain: bool = True) -> torch.Tensor:
    """[T, K] to addends [P, T, N] of the result: float32, or of its type where P is 1.

    ``chain``: see ``kernels.launch.chained``.
    """
    if isinstance(linear, Reading):
        return parts(linear.inner, linear.gathered(x), chain=False)
    if isinstance(linear, W4 | W8):
        return linear.parts(x, chain=chain)
    return linear(x).unsqueeze(0)


class Dense:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias  # [N, K], [N]
        self.size = (weight.shape[1], weight.shape[0])
        self.dtype = weight.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class Wide(Dense):
    """16-bit weights, float32 results, on CUDA: logits, of which 16 bits would make exact ties."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.weight.t()
        if out is not None:
            return torch.mm(x, weight, out_dtype=torch.float32, out=out)
        return torch.mm(x, weight, out_dtype=torch.float32)


class Prepacked:
    """Keeps only the reordered weight. ``usable`` says whether this build of torch can."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.size = (weight.shape[1], weight.shape[0])
        self.dtype = weight.dtype
        self._bias = bias
        self._weight = _onednn()._reorder_linear_weight(weight)
        self._run = _onednn()._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._run(x, self._weight, self._bias, "none", [], "")
        return y

    @classmethod
    def usable(cls, dtype: torch.dtype) -> bool:
        """Tries it on a small weight: the operators are torch's own but not documented."""
        w, x = torch.randn(32, 64).to(dtype), torch.randn(3, 64).to(dtype)
        try:
            y = cls(w)(x)
        except (AttributeError, RuntimeError):
            return False
        return bool((y.float() - x.float() @ w.float().t()).abs().max() < 0.25)


def _onednn() -> Any:
    return torch.ops.mkldnn


class W4:
    def __init__(
        self,
        parts: Sequence[W4Weight],
        size: tuple[int, int],
        *,
        dtype: torch.dtype,
        bias: torch.Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        self.size, self.dtype = size, dtype
        self._parts, self._bias, self._deterministic = parts, bias, deterministic

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._parts) == 1:
            return self._product(x, self._parts[0], self._bias)
        y = torch.cat([self._product(x, part, None) for part in self._parts], dim=1)
        return y if self._bias is None else y.add_(self._bias)

    def parts(
        self, x: torch.Tensor, *, chain: bool = True, signals: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Addends [P, T, N] of the result: float32, or of its type where P is 1.

        ``signals``: see ``matmul_w4a16_parts``; only where it ``awaits_signals``.
        """
        if len(self._parts) > 1 or self._deterministic:
            return self(x).unsqueeze(0)  # one rounding, adapters in the batch or not
        return matmul_w4a16_parts(x, self._parts[0], bias=self._bias, chain=chain, signals=signals)

    def awaits_signals(self, x: torch.Tensor) -> bool:
        whole = len(self._parts) == 1 and not self._deterministic
        return whole and awaits_signals(x, self._parts[0])

    def _product(
        self, x: torch.Tensor, weight: W4Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return matmul_w4a16(x, weight, bias=bias, deterministic=self._deterministic)


class Reading:
    """A Linear whose K' inputs are the inputs ``reads`` [K'] of K; some perhaps more than once."""

    def __init__(self, inner: Linear, reads: torch.Tensor, inputs: int) -> None:
        self.inner, self._reads = inner, reads
        self.size, self.dtype = (inputs, inner.size[1]), inner.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.gathered(x))

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(1, self._reads)


def fuse(weights: Sequence[Quantised]) -> list[Quantised]:
    """One weight where the modules share group size and row order, else those given."""
    first = weights[0]
    alike = all(
        weight.group == first.group
        and (weight.perm is None) == (first.perm is None)
        and (first.perm is None or torch.equal(weight.perm, first.perm))  # type: ignore[arg-type]
        for weight in weights
    )
    if not alike or len(weights) == 1:
        return list(weights)
    return [
        Quantised(
            codes=torch.cat([weight.codes for weight in weights], dim=1),
            scales=torch.cat([weight.scales for weight in weights], dim=1),
            zeros=torch.cat([weight.zeros for weight in weights], dim=1),
            group=first.group,
            perm=first.perm,
        )
    ]


def pack(weight: Quantised, device: torch.device, dtype: torch.dtype) -> W4Weight:
    """Into the kernel's layout, on the device."""
    symmetric = bool((weight.zeros == SYMMETRIC_ZERO).all())
    return pack_w4(
        weight.codes.to(device),
        weight.scales.to(device, dtype),
        None if symmetric else weight.zeros.to(device),
        group=weight.group,
        perm=weight.perm,
    )
