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
_TO_BFLOAT16 = tl.constexpr("""
{
    .reg .b32 a, b, s, t, one;
    mov.b32 one, 0x7b807b80;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    and.b32 s, a, 0x80008000;
    shr.u32 a, a, 4;
    lop3.b32 a, a, 0x07f007f0, s, 0xea;
    and.b32 t, b, 0x80008000;
    shr.u32 b, b, 4;
    lop3.b32 b, b, 0x07f007f0, t, 0xea;
    mul.rn.bf16x2 $0, a, one;
    mul.rn.bf16x2 $1, b, one;
}
""")


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

    As float16 one instruction makes two. As bfloat16 the bits of a code, moved to their places, are
    2^-120 of its value: five instructions for two, where the compiler goes by way of a slow unit.
    """
    if tl.bfloat16 == TYPE:
        return tl.inline_asm_elementwise(
            _TO_BFLOAT16, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        return codes.to(tl.float8e4nv, bitcast=True).to(TYPE)
