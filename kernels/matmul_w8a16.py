"""Matrix product with weights of a byte a number, dequantised on the way into the product.

    x    [M, K]  fp16, bf16 or fp32; columns contiguous
    W    [K, N]  see ``w8_weight``
    out  [M, N]  of the type of x, or float32 where asked for

Codes reach the tensor cores exactly: as e4m3, or less its zero, a byte is a number of x's type.
Scales are applied to sums in float32. K is cut into parts where the columns alone do not fill the
device; a part is an addend in float32. Above DEQUANTIZE_ABOVE rows the weight is dequantised first.
"""

import torch
import triton
import triton.language as tl

from kernels.e4m3 import from_codes
from kernels.int8 import from_integers
from kernels.launch import cdiv, chained, compute_type, require, use_triton
from kernels.planes import total
from kernels.tuning import DEQUANTIZE_ABOVE, Config, choose, matmul_splits
from kernels.w8_weight import W8Weight, dequantize_w8

ROWS_AT_ONCE = 64  # in deterministic mode, of the one tile there is


@triton.jit(do_not_specialize=["M", "per"])
def _matmul_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_x,
    per,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """BN columns by BM rows over ``per`` blocks of K. A block lies in one group."""
    part = tl.program_id(2)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    column = tl.minimum(n, N - 1)  # past the end the last is computed again, and not written
    at_values = values_ptr + column.to(tl.int64)[:, None] * K + k[None, :]
    at_x = x_ptr + m.to(tl.int64)[None, :] * stride_x + k[:, None]
    live = (m < M)[None, :]
    acc = tl.zeros((BN, BM), tl.float32)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    for block in range(part * per, tl.minimum(part * per + per, tl.cdiv(K, BK))):
        first = block * BK
        if K % BK == 0:
            codes = tl.load(at_values + first, eviction_policy="evict_first")
            x = tl.load(at_x + first, mask=live, other=0.0)
        else:
            inside = first + k < K
            codes = tl.load(at_values + first, mask=inside[None, :], other=0)
            x = tl.load(at_x + first, mask=live & inside[:, None], other=0.0)
        if values_ptr.dtype.element_ty == tl.uint8:
            w = from_codes(codes, CT)
        else:
            w = from_integers(codes, CT)
            if zeros_ptr is not None:
                w -= tl.load(zeros_ptr + first // GROUP * N + column).to(CT)[:, None]
        if GROUP < K:
            scale = tl.load(scales_ptr + first // GROUP * N + column)
            acc += tl.dot(w, x.to(CT), input_precision="ieee") * scale[:, None]
        else:
            acc = tl.dot(w, x.to(CT), acc, input_precision="ieee")
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    if GROUP >= K:
        acc *= tl.load(scales_ptr + column)[:, None]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column).to(tl.float32)
        acc += tl.where(part == 0, bias, 0.0)[:, None]
    to = out_ptr + (part * M + m).to(tl.int64)[None, :] * N + n[:, None]
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=live & (n < N)[:, None])


@triton.jit
def _dequantize_kernel(  # type: ignore[no-untyped-def]
    values_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A tile of out [N, K], rounded once."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    inside = (n < N)[:, None] & (k < K)[None, :]
    at = n.to(tl.int64)[:, None] * K + k[None, :]
    codes = tl.load(values_ptr + at, mask=inside, other=0)
    group = tl.program_id(0) * BK // GROUP * N + n
    if values_ptr.dtype.element_ty == tl.uint8:
        w = from_codes(codes, tl.float32)
    else:
        w = codes.to(tl.float32)
        if zeros_ptr is not None:
            w -= tl.load(zeros_ptr + group, mask=n < N, other=0).to(tl.float32)[:, None]
    w *= tl.load(scales_ptr + group, mask=n < N, other=0.0)[:, None]
    tl.store(out_ptr + at, w.to(out_ptr.dtype.element_ty), mask=inside)


def matmul_w8a16(
    x: torch.Tensor,
    w: W8Weight,
    *,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    deterministic: bool = False,
) -> torch.Tensor:
    """x @ W + bias, [M, N].

    Args:
        dtype: of the result; None: that of x.
        deterministic: a row is bit-equal whoever shares the batch. Slower for many rows.
    """
    planes = matmul_w8a16_parts(x, w, bias=bias, dtype=dtype, deterministic=deterministic)
    return total(planes).to(dtype or x.dtype)


def matmul_w8a16_parts(
    x: torch.Tensor,
    w: W8Weight,
    *,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    deterministic: bool = False,
    chain: bool = True,
) -> torch.Tensor:
    """x @ W + bias as addends [P, M, N]: float32, or of the result's type where P is 1.

    Args:
        chain: see ``launch.chained``.
    """
    M, dtype = x.shape[0], dtype or x.dtype
    require(x.shape[1] == w.rows, f"x: {x.shape[1]} columns, the weight has {w.rows} rows")
    require(x.stride(1) == 1, "x: columns must be contiguous")
    if w.perm is not None:
        x = x.index_select(1, w.perm)
    if not use_triton(x) or (M > DEQUANTIZE_ABOVE and not deterministic):
        wide = x if dtype == x.dtype or x.is_cuda else x.to(dtype)
        return torch.nn.functional.linear(wide, _dense(w, wide.dtype), bias).to(dtype).unsqueeze(0)
    if M == 0:
        return torch.empty((1, 0, w.columns), dtype=dtype, device=x.device)
    return _planes(x, w, bias, dtype, deterministic, chain)


def _planes(
    x: torch.Tensor,
    w: W8Weight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    deterministic: bool,
    chain: bool,
) -> torch.Tensor:
    """In deterministic mode there is one tile, and the weight alone says how K is cut."""
    M, N, K = x.shape[0], w.columns, w.rows
    config = choose("matmul_w8a16", ROWS_AT_ONCE if deterministic else M, x.device)
    depth = _depth(config, w)
    columns, rows, blocks = cdiv(N, config.columns), cdiv(M, config.rows), cdiv(K, depth)
    parts = matmul_splits(columns * (1 if deterministic else rows), blocks, x.device)
    kind = dtype if parts == 1 else torch.float32
    planes = torch.empty((parts, M, N), dtype=kind, device=x.device)
    _matmul_kernel[(columns, rows, parts)](
        x,
        _bytes(w),
        w.scales,
        w.zeros,
        bias,
        planes,
        M,
        N,
        x.stride(0),
        cdiv(blocks, parts),
        K=K,
        GROUP=w.group,
        BM=config.rows,
        BN=config.columns,
        BK=depth,
        CT=compute_type(x.dtype),
        num_warps=config.warps,
        num_stages=config.stages,
        **chained(x, chain=chain),
    )
    return planes


def _depth(config: Config, w: W8Weight) -> int:
    """Rows of a block: all of one group."""
    if w.group >= w.rows:
        return config.depth
    return next(size for size in (config.depth, 128, 64, 32) if w.group % size == 0)


def _bytes(w: W8Weight) -> torch.Tensor:
    """Codes of floats as uint8, integers as they are."""
    return w.values if w.values.dtype == torch.int8 else w.values.view(torch.uint8)


def _dense(w: W8Weight, dtype: torch.dtype) -> torch.Tensor:
    """W transposed, [N, K], its rows in stored order."""
    if not use_triton(w.values):
        return dequantize_w8(w, dtype=dtype)
    dense = torch.empty((w.columns, w.rows), dtype=dtype, device=w.values.device)
    depth = 128 if w.group >= w.rows else next(s for s in (128, 64, 32) if w.group % s == 0)
    _dequantize_kernel[(cdiv(w.rows, depth), cdiv(w.columns, 32))](
        _bytes(w),
        w.scales,
        w.zeros,
        dense,
        w.columns,
        K=w.rows,
        GROUP=w.group,
        BN=32,
        BK=depth,
        num_warps=4,
    )
    return dense


def matmul_w8a16_reference(
    x: torch.Tensor, w: W8Weight, *, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The definition in float64, rounded once."""
    inputs = x if w.perm is None else x[:, w.perm]
    y = inputs.double() @ dequantize_w8(w, dtype=torch.float64).t()
    return (y if bias is None else y + bias.double()).to(x.dtype)
