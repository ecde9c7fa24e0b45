"""Vectors of numbers in 8 bits: e4m3 codes and the magnitude they are relative to.

    codes       [.., D]  float8_e4m3fn
    magnitudes  [..]     float32, the largest absolute value of each vector
    value       codes * magnitudes / 448

448 is the largest number of e4m3, so a vector uses the whole range whatever its size: a fixed
scale would cut off large keys (those of Qwen2.5 go into the hundreds) and lose most bits of small
values. A vector depends on itself alone, so nothing that is stored is ever scaled again. What is
not finite stays so.
"""

import torch
import triton
import triton.language as tl

LARGEST = 448.0
SMALLEST = 2.0**-60  # magnitude of a vector of smaller numbers
_LARGEST = tl.constexpr(LARGEST)  # as kernels see it
_SMALLEST = tl.constexpr(SMALLEST)


def to_e4m3(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [.., D] and magnitudes [..] of values [.., D]."""
    wide = values.float()
    magnitudes = wide.abs().amax(-1).clamp_(min=SMALLEST)
    scaled = wide * LARGEST / magnitudes.unsqueeze(-1)
    return scaled.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), magnitudes


def from_e4m3(codes: torch.Tensor, magnitudes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values [.., D], rounded to a type."""
    return (codes.float() * (magnitudes / LARGEST).unsqueeze(-1)).to(dtype)


@triton.jit
def magnitude_of(largest):  # type: ignore[no-untyped-def]
    """What is kept of float32 largest absolute values."""
    return tl.maximum(largest, _SMALLEST)


@triton.jit
def e4m3_codes(values, magnitudes):  # type: ignore[no-untyped-def]
    """Codes as uint8 of float32 values, beside the magnitudes of their vectors.

    By integer arithmetic, ties to even: the interpreter's own conversion rounds wrongly.
    """
    values, magnitudes = tl.broadcast(values * _LARGEST, magnitudes)
    scaled = tl.math.div_rn(values, magnitudes)
    size = tl.minimum(tl.abs(scaled), _LARGEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    few = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # multiples of 2^-9
    code = tl.where(size < 0.015625, few, normal)
    code = tl.where(scaled == scaled, code, 0x7F)
    return (code | tl.where(scaled < 0, 0x80, 0)).to(tl.uint8)


@triton.jit
def from_codes(codes, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What uint8 codes stand for, before the magnitude; exactly, in 16 bits too.

    By way of float16, where one instruction makes two: the compiler's own way to bfloat16 takes
    twice the instructions and a slow unit.
    """
    exact = codes.to(tl.float8e4nv, bitcast=True)
    if tl.bfloat16 == TYPE:
        return exact.to(tl.float16).to(tl.float32).to(tl.bfloat16)
    else:
        return exact.to(TYPE)
