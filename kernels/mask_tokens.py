"""Bar tokens: a logit whose bit is 0 becomes minus infinity, in place.

    logits  [B, V]  float32
    rows    [B]     int32, the row of ``bits`` that holds for each; -1: none, nothing is barred
    bits    [M, W]  int32, token v's bit is bit v % 32 of word v // 32

Tokens past the last word are barred. A row without bits costs one read of its index. A word is
read as often as it has tokens in a block, from the first-level cache.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import cdiv, chained, require, use_triton

_BLOCK = 4096


@triton.jit
def _mask_tokens_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    rows_ptr,
    bits_ptr,
    V,
    W,
    stride_b,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    b = tl.program_id(0)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.load(rows_ptr + b)
    if row >= 0:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        word = tl.load(
            bits_ptr + row.to(tl.int64) * W + at // 32,
            mask=(at < V) & (at // 32 < W),
            other=0,
        )
        barred = (word >> (at % 32)) & 1 == 0
        into = logits_ptr + b.to(tl.int64) * stride_b + at
        tl.store(into, float("-inf"), mask=barred & (at < V))


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """``logits`` is changed."""
    B, V = logits.shape
    require(logits.dtype == torch.float32, f"logits: {logits.dtype} is not float32")
    require(logits.stride(1) == 1, "logits: columns must be contiguous")
    require(rows.shape == (B,), f"rows: {tuple(rows.shape)} is not one for each of {B} rows")
    require(rows.dtype == torch.int32, f"rows: {rows.dtype} is not int32")
    require(bits.dtype == torch.int32, f"bits: {bits.dtype} is not int32")
    require(bits.is_contiguous(), "bits: must be contiguous")
    if not use_triton(logits):
        _mask_tokens_torch(logits, rows, bits)
    elif B:
        _mask_tokens_kernel[(B, cdiv(V, _BLOCK))](
            logits,
            rows,
            bits,
            V,
            bits.shape[1],
            logits.stride(0),
            BLOCK=_BLOCK,
            num_warps=4,
            **chained(logits),
        )


def _mask_tokens_torch(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    V = logits.shape[1]
    shifts = torch.arange(32, dtype=torch.int32)
    for b, row in enumerate(rows.tolist()):
        if row >= 0:
            allowed = (bits[row].unsqueeze(1) >> shifts & 1).bool().reshape(-1)[:V]
            logits[b, : len(allowed)].masked_fill_(~allowed, -torch.inf)
            logits[b, len(allowed) :] = -torch.inf


def mask_tokens_reference(
    logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor
) -> torch.Tensor:
    """The definition, token by token."""
    masked = logits.clone()
    for b, row in enumerate(rows.tolist()):
        for v in range(logits.shape[1] if row >= 0 else 0):
            word = int(bits[row, v // 32]) if v // 32 < bits.shape[1] else 0
            if not word >> v % 32 & 1:
                masked[b, v] = -torch.inf
    return masked
