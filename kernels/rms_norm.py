"""RMS normalisation, with the addition of a residual stream before it.

    r = residual + x                        (only with a residual; rounded to its type)
    y = r / sqrt(mean(r^2) + eps) * weight

    x         [T, H]   any float type, contiguous columns
    weight    [H]
    residual  [T, H]   updated in place to r
    y         [T, H]   of the type of x

The mean and the product are taken in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2, require, use_triton


@triton.jit
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    stride_x,
    stride_residual,
    stride_y,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < H
    x = tl.load(x_ptr + row * stride_x + col, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual_ptr + row * stride_residual + col
        total = tl.load(at, mask=inside, other=0.0).to(tl.float32) + x
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    y = (x * rstd * weight).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * stride_y + col, y, mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalise the rows of x (or of residual + x, which is stored in residual)."""
    T, H = x.shape
    require(x.stride(1) == 1, "x: columns must be contiguous")
    require(weight.shape == (H,), f"weight: {tuple(weight.shape)} does not match {H} columns")
    if not use_triton(x):
        return _rms_norm_torch(x, weight, eps, residual, out)
    y = torch.empty((T, H), dtype=x.dtype, device=x.device) if out is None else out
    if T == 0:
        return y
    stream = x if residual is None else residual
    block = next_power_of_2(H)
    _rms_norm_kernel[(T,)](
        x,
        stream,
        weight,
        y,
        x.stride(0),
        stream.stride(0),
        y.stride(0),
        eps,
        H=H,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        num_warps=4 if block <= 2048 else 8,
    )
    return y


def _rms_norm_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    stream = x if residual is None else residual.add_(x)
    wide = stream.to(torch.float32, copy=True)
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    y = wide.mul_(rstd).mul_(weight)
    return y.to(x.dtype) if out is None else out.copy_(y)


def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, r) in new tensors."""
    stream = x if residual is None else (residual.float() + x.float()).to(residual.dtype)
    wide = stream.float()
    scale = (wide.pow(2).mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.float()).to(x.dtype), stream
