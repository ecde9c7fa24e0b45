"""An adapter's matrices in 8 bits, as they lie in the page pool.

    value = code * (magnitude / largest)    largest: 127 of int8, 448 of e4m3

Each row of A, one for a rank, and each row of B, one for an output, has a magnitude: its largest
absolute value. A's scale what the product with A brings, B's what that with B brings, so a kernel
multiplies codes as they are, which every type holds exactly. A block of rows begins with their
magnitudes, of the pool's own type; behind them is a byte for each element, rows as far apart, in
bytes, as they would be in elements.
"""

from enum import StrEnum

import torch
import triton
import triton.language as tl

from kernels.e4m3 import LARGEST, from_codes
from kernels.int8 import from_integers


class LoraCodes(StrEnum):
    INT8 = "int8"
    E4M3 = "e4m3"

    @property
    def dtype(self) -> torch.dtype:
        """What kernels see: bytes that are no integers are e4m3."""
        return torch.int8 if self is LoraCodes.INT8 else torch.uint8

    @property
    def largest(self) -> float:
        """The code of a row's magnitude."""
        return 127.0 if self is LoraCodes.INT8 else LARGEST

    def values(self, stored: torch.Tensor) -> torch.Tensor:
        """float32 of bytes."""
        kind = torch.int8 if self is LoraCodes.INT8 else torch.float8_e4m3fn
        return stored.view(kind).float()


@triton.jit
def _halves(stored):  # type: ignore[no-untyped-def]
    """int8 as float16, four in five instructions: see ``from_integers``, which the compiler does
    one by one."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 t, zero;
        mov.b32 zero, 0x64806480;
        xor.b32 t, $2, 0x80808080;
        prmt.b32 $0, t, 0x64646464, 0x4140;
        prmt.b32 $1, t, 0x64646464, 0x4342;
        sub.f16x2 $0, $0, zero;
        sub.f16x2 $1, $1, zero;
        }""",
        "=&r,=&r,r",
        [stored],
        dtype=tl.float16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def code_values(stored, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Elements as they are stored, codes or not, as a type that holds them."""
    if stored.dtype == tl.uint8:
        return from_codes(stored, TYPE)
    elif stored.dtype == tl.int8:
        return _halves(stored) if tl.float16 == TYPE else from_integers(stored, TYPE)
    else:
        return stored.to(TYPE)


def coded(pool: torch.Tensor, codes: LoraCodes | None) -> torch.Tensor:
    """The pool as kernels find elements of A and B in it."""
    return pool if codes is None else pool.view(codes.dtype)


def bytes_of(pool: torch.Tensor, codes: LoraCodes | None) -> int:
    """Elements of what ``coded`` gives, in the place of one of the pool."""
    return 1 if codes is None else pool.itemsize


def from_block(
    pool: torch.Tensor, codes: LoraCodes, at: int, head: int, shape: tuple[int, int, int]
) -> torch.Tensor:
    """float32 [rows, width] of the block at this element, whose codes begin ``head`` later.

    ``shape``: rows, width, bytes from row to row.
    """
    rows, width, stride = shape
    magnitudes = pool[at : at + rows].float()
    first = (at + head) * pool.itemsize
    stored = pool.view(torch.uint8).as_strided((rows, width), (stride, 1), first)
    return codes.values(stored) * (magnitudes * (1 / codes.largest)).unsqueeze(1)


def reference_row(
    pool: torch.Tensor,
    codes: LoraCodes | None,
    block: tuple[int, int],
    row: int,
    shape: tuple[int, int],
) -> torch.Tensor:
    """float64 [width]: one row of a block.

    ``block``: its first element, and how much later codes begin; ``shape``: width, stride.
    """
    (at, head), (width, stride) = block, shape
    if codes is None:
        return pool[at + row * stride : at + row * stride + width].double()
    first = (at + head) * pool.itemsize + row * stride
    stored = codes.values(pool.view(torch.uint8)[first : first + width]).double()
    return stored * pool[at + row].double() / codes.largest
