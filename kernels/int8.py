"""Integers of 8 bits as kernels read them."""

import triton
import triton.language as tl


@triton.jit
def from_integers(codes, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """int8 as a type that holds it. Behind 0x64, as float16, a byte is 1024 and itself: the
    compiler's own conversion goes by way of a slow unit there."""
    if tl.float16 != TYPE:
        return codes.to(TYPE)
    else:
        bits = (codes.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.uint16) | 0x6400
        return bits.to(tl.float16, bitcast=True) - 1152.0
