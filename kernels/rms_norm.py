"""RMS normalisation, with the addition of a residual stream before it.

    r = residual + x                        (only with a residual; rounded to its type)
    y = r / sqrt(mean(r^2) + eps) * weight

    x         [T, H]   any float type, contiguous columns; or [P, T, H], addends of x in planes
    addend    [T, H]   one more of them, of any type
    weight    [H]
    residual  [T, H]   updated in place to r
    rows      [R]      integers: only these rows are taken, and residual is left as it is
    y         [T, H]   or [R, H], of the type of x, or of residual where x comes in planes

The addends of x, the mean and the product are taken in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import chained, next_power_of_2, require, use_triton
from kernels.planes import total


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    addend_ptr,
    residual_ptr,
    weight_ptr,
    rows_ptr,
    y_ptr,
    stride_part,
    stride_x,
    stride_residual,
    stride_y,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    ADDEND: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    to = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < H
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = to
    if HAS_ROWS:
        row = tl.load(rows_ptr + to).to(tl.int64)
    x = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        at = x_ptr + part * stride_part + row * stride_x + col
        x += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if ADDEND:
        x += tl.load(addend_ptr + row * H + col, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual_ptr + row * stride_residual + col
        total = tl.load(at, mask=inside, other=0.0).to(tl.float32) + x
        rounded = total.to(residual_ptr.dtype.element_ty)
        if not HAS_ROWS:
            tl.store(at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)
    y = (x * rstd * weight).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + to * stride_y + col, y, mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    addend: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    chain: bool = True,
) -> torch.Tensor:
    """Normalise the rows of x (or of residual + x, which is stored in residual).

    Args:
        chain: see ``launch.chained``.
    """
    T, H = x.shape[-2:]
    require(x.stride(-1) == 1, "x: columns must be contiguous")
    require(weight.shape == (H,), f"weight: {tuple(weight.shape)} does not match {H} columns")
    if not use_triton(x):
        return _rms_norm_torch(total(x, addend), weight, eps, residual, rows, out)
    stream = x if residual is None else residual
    count = T if rows is None else rows.numel()
    y = torch.empty((count, H), dtype=stream.dtype, device=x.device) if out is None else out
    if count == 0:
        return y
    parts = x.shape[0] if x.dim() == 3 else 1
    block = next_power_of_2(H)
    _rms_norm_kernel[(count,)](
        x,
        x if addend is None else addend.contiguous(),  # a pointer that may not be read
        stream,
        weight,
        weight if rows is None else rows,  # a pointer that is not read
        y,
        x.stride(0) if parts > 1 else 0,
        x.stride(-2),
        stream.stride(-2),
        y.stride(0),
        eps,
        H=H,
        BLOCK=block,
        PARTS=parts,
        ADDEND=addend is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_ROWS=rows is not None,
        num_warps=min(max(block // 256, 4), 16),
        **chained(x, chain=chain),
    )
    return y


def _rms_norm_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    rows: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if rows is not None:
        x, residual = x[rows], None if residual is None else residual[rows]
    stream = x if residual is None else residual.add_(x)
    wide, H = stream.to(torch.float32, copy=True), stream.shape[-1]
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # one call: three for a mean
    rstd = norm.square_().add_(eps * H).rsqrt_().mul_(H**0.5)
    y = wide.mul_(rstd).mul_(weight)
    return y.to(stream.dtype) if out is None else out.copy_(y)


def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    addend: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, r) in new tensors."""
    x = x if addend is None else (x.float().sum(0) if x.dim() == 3 else x.float()) + addend.float()
    if rows is not None:
        x, residual = x[..., rows, :], None if residual is None else residual[rows]
    x = x.float().sum(0) if x.dim() == 3 else x
    stream = x if residual is None else (residual.float() + x.float()).to(residual.dtype)
    wide = stream.float()
    scale = (wide.pow(2).mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.float()).to(stream.dtype), stream
