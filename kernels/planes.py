"""A sum that is handed on as its addends: whoever reads it adds them up.

planes  [P, T, N]  float32, or of the sum's own type where P is 1; or [T, N], the sum itself
addend  [T, N]     one more, of the sum's type: what adapters add
"""

import torch
import triton
import triton.language as tl

from kernels.launch import cdiv, use_triton

BLOCK = 1024


def total(planes: torch.Tensor, addend: torch.Tensor | None = None) -> torch.Tensor:
    """The sum, [T, N]: taken in float32, and in float32 unless it is one plane as it is."""
    if planes.dim() == 3:
        planes = planes[0] if planes.shape[0] == 1 else planes.float().sum(0)
    return planes if addend is None else planes.float() + addend


def summed(planes: torch.Tensor, addend: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The sum in memory of its own, [T, N] of ``dtype``: taken in float32 and rounded once."""
    if not use_triton(planes):
        return total(planes, addend).to(dtype, copy=True)
    planes = planes if planes.dim() == 3 else planes.unsqueeze(0)
    planes = planes.contiguous()
    out = torch.empty(planes.shape[1:], dtype=dtype, device=planes.device)
    size = out.numel()
    if size:
        _sum_kernel[(cdiv(size, BLOCK),)](
            planes,
            planes if addend is None else addend.contiguous(),  # a pointer that may not be read
            out,
            size,
            PARTS=planes.shape[0],
            ADDEND=addend is not None,
            BLOCK=BLOCK,
        )
    return out


@triton.jit
def _sum_kernel(  # type: ignore[no-untyped-def]
    planes_ptr,
    addend_ptr,
    out_ptr,
    size,
    PARTS: tl.constexpr,
    ADDEND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    wide = size.to(tl.int64)
    x = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(planes_ptr + part * wide + at, mask=inside, other=0.0).to(tl.float32)
    if ADDEND:
        x += tl.load(addend_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=inside)
