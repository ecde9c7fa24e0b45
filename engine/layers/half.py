"""``y = x Wᵀ + b`` on a CPU in float32, over a weight kept in float16.

A head takes as long as its weight takes to read. torch's own operator reads float16 and widens it
in registers: products and sums are those of float32, at half the bytes (measured on one core with
AVX512, 49152 x 576: 0.6 of the time of a prepacked float32 weight at 8 rows, 1.2 at 32).
"""

import torch

ROUNDING = 2.0**-25  # what float16 may change of a weight: less than its least step above zero
ROWS = 4096  # looked at together


class Half:
    """``fits`` says which weights it can hold, ``usable`` whether this build of torch has it."""

    dtype = torch.float32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.size = (weight.shape[1], weight.shape[0])
        self._bias = bias
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x.contiguous(), self._weight)
        return y if self._bias is None else y.add_(self._bias)

    @classmethod
    def fits(cls, weight: torch.Tensor) -> bool:
        """Whether float16 holds it, but for the last bits of values next to zero."""
        return all(
            bool((part.half().float() - part.float()).abs().max() <= ROUNDING)
            for part in torch.split(weight, ROWS)
        )

    @classmethod
    def usable(cls) -> bool:
        """Tries a small weight: the operator is torch's own but not in every build."""
        random = torch.Generator().manual_seed(0)
        w = torch.randn(48, 40, generator=random).half().float()
        x = torch.randn(3, 40, generator=random)
        try:
            y = cls(w)(x)
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
        return bool((y - x @ w.t()).abs().max() < 1e-4)
