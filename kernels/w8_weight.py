"""A weight of a byte a number, as ``matmul_w8a16`` reads it.

    values  [N, K]  float8_e4m3fn, or int8
    scales  [G, N]  float32; G = ceil(K / group)
    zeros   [G, N]  int16, of int8 values; None where all are 0

    w[k, n] = (values[n, k] - zeros[k // group, n]) * scales[k // group, n]

With ``perm``, row k of w belongs to input perm[k].
"""

from dataclasses import dataclass

import torch

from kernels.launch import cdiv, require


@dataclass(frozen=True, slots=True, kw_only=True)
class W8Weight:
    values: torch.Tensor
    scales: torch.Tensor
    group: int
    zeros: torch.Tensor | None = None
    perm: torch.Tensor | None = None  # int64 [K]

    def __post_init__(self) -> None:
        N, K = self.values.shape
        wanted = (cdiv(K, self.group), N)
        kinds = (torch.float8_e4m3fn, torch.int8)
        require(self.values.dtype in kinds, f"values: {self.values.dtype} is none of {kinds}")
        require(self.values.is_contiguous(), "values: must be contiguous")
        require(
            self.group == K or self.group % 32 == 0, f"group: {self.group} is no multiple of 32"
        )
        require(
            tuple(self.scales.shape) == wanted, f"scales: {list(self.scales.shape)} != {wanted}"
        )
        require(self.scales.dtype == torch.float32, "scales: must be float32")
        fits = self.zeros is None or self.zeros.shape == self.scales.shape
        require(fits and self.scales.is_contiguous(), "zeros, scales: must be alike and contiguous")
        require(self.zeros is None or self.values.dtype == torch.int8, "zeros: of integers alone")

    @property
    def rows(self) -> int:
        return self.values.shape[1]

    @property
    def columns(self) -> int:
        return self.values.shape[0]

    @property
    def nbytes(self) -> int:
        parts = (self.values, self.scales, self.zeros, self.perm)
        return sum(part.nbytes for part in parts if part is not None)


def dequantize_w8(w: W8Weight, *, dtype: torch.dtype) -> torch.Tensor:
    """W transposed, [N, K], its rows in stored order."""
    wide = w.values.to(torch.float64 if dtype == torch.float64 else torch.float32)
    for g in range(w.scales.shape[0]):
        part = wide[:, g * w.group : (g + 1) * w.group]
        if w.zeros is not None:
            part -= w.zeros[g, :, None]
        part *= w.scales[g, :, None]
    return wide.to(dtype)
