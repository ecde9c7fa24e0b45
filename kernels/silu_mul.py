"""The gate of a Llama MLP: ``y = silu(gate) * up``.

    gate_up  [T, 2 I]  gate in the first I columns, up in the last; columns contiguous
    y        [T, I]    of the same type

silu(x) = x / (1 + exp(-x)); computed in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import require, use_triton


@triton.jit
def _silu_mul_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, stride_x, stride_y, half, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < half
    gate = tl.load(x_ptr + row * stride_x + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + half + col, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * stride_y + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu of the first half of the columns times the second half."""
    T, width = gate_up.shape
    require(width % 2 == 0, f"gate_up: {width} columns are not two halves")
    require(gate_up.stride(1) == 1, "gate_up: columns must be contiguous")
    half = width // 2
    if not use_triton(gate_up):
        return _silu_mul_torch(gate_up, half, out)
    y = torch.empty((T, half), dtype=gate_up.dtype, device=gate_up.device) if out is None else out
    if T:
        block = 1024
        _silu_mul_kernel[(T, triton.cdiv(half, block))](
            gate_up, y, gate_up.stride(0), y.stride(0), half, BLOCK=block, num_warps=4
        )
    return y


def _silu_mul_torch(gate_up: torch.Tensor, half: int, out: torch.Tensor | None) -> torch.Tensor:
    gate, up = gate_up.split(half, dim=1)
    y = torch.nn.functional.silu(gate.float()).mul_(up)
    return y.to(gate_up.dtype) if out is None else out.copy_(y)


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The definition."""
    gate, up = gate_up.float().chunk(2, dim=1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)
