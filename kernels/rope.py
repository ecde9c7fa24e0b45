"""Rotary position embedding, in place, on halves (Llama's convention).

    q          [T, QH, D]   updated in place; D contiguous
    k          [T, KVH, D]  updated in place; D contiguous
    positions  [T]          int64, rows of cos_sin
    cos_sin    [P, D]       float32: cos of D/2 frequencies, then sin of the same

    first half   a cos - b sin
    second half  b cos + a sin      where (a, b) are the halves of a head

The rotation is computed in float32.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2, require, use_triton


@triton.jit(do_not_specialize_on_alignment=["positions_ptr"])
def _rope_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    positions_ptr,
    cos_sin_ptr,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    QH: tl.constexpr,
    KVH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # q heads, then k heads
    d = tl.arange(0, BLOCK_HALF)
    position = tl.load(positions_ptr + row)
    table = cos_sin_ptr + position * (2 * HALF) + d
    cos = tl.load(table, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF, mask=d < HALF, other=0.0)[None, :]
    inside = (d < HALF)[None, :]
    _rotate(q_ptr + row * stride_qt, head, stride_qh, QH, d, cos, sin, inside, HALF)
    _rotate(k_ptr + row * stride_kt, head - QH, stride_kh, KVH, d, cos, sin, inside, HALF)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    base, head, stride_h, heads: tl.constexpr, d, cos, sin, inside, HALF: tl.constexpr
):
    live = inside & ((head >= 0) & (head < heads))[:, None]
    at = base + head[:, None] * stride_h + d[None, :]  # [BLOCK_H, BLOCK_HALF]
    a = tl.load(at, mask=live, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=live, other=0.0).to(tl.float32)
    tl.store(at, (a * cos - b * sin).to(base.dtype.element_ty), mask=live)
    tl.store(at + HALF, (b * cos + a * sin).to(base.dtype.element_ty), mask=live)


def rope(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """Rotate the heads of q and k by their positions, in place."""
    (T, QH, D), KVH = q.shape, k.shape[1]
    require(k.shape == (T, KVH, D), f"k: {tuple(k.shape)} does not match q {tuple(q.shape)}")
    require(D % 2 == 0 and cos_sin.shape[1] == D, f"cos_sin: needs {D} columns")
    require(q.stride(2) == 1 and k.stride(2) == 1, "q, k: heads must be contiguous")
    if not use_triton(q):
        _rope_torch(q, k, positions, cos_sin)
    elif T:
        heads = min(8, next_power_of_2(QH + KVH))
        _rope_kernel[(T, triton.cdiv(QH + KVH, heads))](
            q,
            k,
            positions,
            cos_sin,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            QH=QH,
            KVH=KVH,
            HALF=D // 2,
            BLOCK_HALF=next_power_of_2(D // 2),
            BLOCK_H=heads,
            num_warps=4,
        )


def _rope_torch(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    half = q.shape[2] // 2
    heads = torch.cat((q, k), dim=1).float()  # one pass over both: calls cost more than copies
    cos, sin = cos_sin[positions].unsqueeze(1).split(half, dim=2)
    a, b = heads.split(half, dim=2)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=2)
    q.copy_(turned[:, : q.shape[1]])
    k.copy_(turned[:, q.shape[1] :])


def rope_reference(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotated q and k in new tensors."""
    half = q.shape[2] // 2
    cos = cos_sin[positions][:, None, :half].repeat(1, 1, 2)
    sin = cos_sin[positions][:, None, half:].repeat(1, 1, 2)

    def turn(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        swapped = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
        return (wide * cos + swapped * sin).to(x.dtype)

    return turn(q), turn(k)
