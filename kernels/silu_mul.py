"""The gate of a Llama MLP: ``y = silu(gate) * up``.

    gate_up  [T, 2 I]  gate in the first I columns, up in the last; columns contiguous; or
             [P, T, 2 I], addends of it in planes
    addend   [T, 2 I]  one more of them, of any type
    y        [T, I]    of the type asked for, or the same

silu(x) = x / (1 + exp(-x)); computed in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import chained, require, use_triton
from kernels.planes import total


@triton.jit
def _silu_mul_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    addend_ptr,
    y_ptr,
    stride_part,
    stride_x,
    stride_y,
    half,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    ADDEND: tl.constexpr,
    CHAINED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < half
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    gate = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        at = x_ptr + part * stride_part + row * stride_x + col
        gate += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if ADDEND:
        at = addend_ptr + row * (2 * half) + col
        gate += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * stride_y + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def silu_mul(
    gate_up: torch.Tensor,
    *,
    addend: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    chain: bool = True,
) -> torch.Tensor:
    """silu of the first half of the columns times the second half.

    Args:
        chain: see ``launch.chained``.
    """
    T, width = gate_up.shape[-2:]
    require(width % 2 == 0, f"gate_up: {width} columns are not two halves")
    require(gate_up.stride(-1) == 1, "gate_up: columns must be contiguous")
    half = width // 2
    if out is None:
        out = torch.empty((T, half), dtype=dtype or gate_up.dtype, device=gate_up.device)
    if not use_triton(gate_up):
        return _silu_mul_torch(total(gate_up, addend), half, out)
    if T:
        parts = gate_up.shape[0] if gate_up.dim() == 3 else 1
        block = 1024
        _silu_mul_kernel[(T, triton.cdiv(half, block))](
            gate_up,
            gate_up if addend is None else addend.contiguous(),
            out,
            gate_up.stride(0) if parts > 1 else 0,
            gate_up.stride(-2),
            out.stride(0),
            half,
            BLOCK=block,
            PARTS=parts,
            ADDEND=addend is not None,
            num_warps=4,
            **chained(gate_up, chain=chain),
        )
    return out


def _silu_mul_torch(gate_up: torch.Tensor, half: int, out: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.split(half, dim=1)
    return out.copy_(torch.nn.functional.silu(gate.float()).mul_(up))


def silu_mul_reference(gate_up: torch.Tensor, addend: torch.Tensor | None = None) -> torch.Tensor:
    """The definition."""
    gate_up = gate_up.sum(0) if gate_up.dim() == 3 else gate_up
    gate_up = gate_up if addend is None else gate_up.float() + addend.float()
    gate, up = gate_up.float().chunk(2, dim=1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)
