"""Scatter new keys and values into their pages.

    k, v   [T, KVH, D]           D contiguous
    kv     [P, 2, KVH, PS, D]    one layer's view of the page pool; a [PS, D] tile is contiguous
    slots  [T]                   int64, page * PS + offset in the page; -1 writes nothing

Slots of one call are distinct, so no order of writes is implied.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2, require, use_triton


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _kv_write_kernel(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    kv_ptr,
    slots_ptr,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_page,
    stride_side,
    stride_head,
    KVH: tl.constexpr,
    PS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    if slot >= 0:
        h = tl.arange(0, BLOCK_H)[:, None]
        d = tl.arange(0, BLOCK_D)[None, :]
        live = (h < KVH) & (d < D)
        k = tl.load(k_ptr + row * stride_kt + h * stride_kh + d, mask=live)
        v = tl.load(v_ptr + row * stride_vt + h * stride_vh + d, mask=live)
        to = kv_ptr + slot // PS * stride_page + h * stride_head + slot % PS * D + d
        tl.store(to, k.to(kv_ptr.dtype.element_ty), mask=live)
        tl.store(to + stride_side, v.to(kv_ptr.dtype.element_ty), mask=live)


def kv_write(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """Store the keys and values of T tokens at their slots."""
    T, KVH, D = k.shape
    _, sides, heads, PS, _ = kv.shape
    require(v.shape == k.shape, f"v: {tuple(v.shape)} does not match k {tuple(k.shape)}")
    require((sides, heads, kv.shape[4]) == (2, KVH, D), f"kv: {tuple(kv.shape)} does not fit k")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    require(k.stride(2) == 1 and v.stride(2) == 1, "k, v: heads must be contiguous")
    if not use_triton(k):
        _kv_write_torch(k, v, kv, slots)
    elif T:
        _kv_write_kernel[(T,)](
            k,
            v,
            kv,
            slots,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            KVH=KVH,
            PS=PS,
            D=D,
            BLOCK_H=next_power_of_2(KVH),
            BLOCK_D=next_power_of_2(D),
            num_warps=4,
        )


def _kv_write_torch(
    k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor
) -> None:
    if slots.numel() and int(slots.min()) < 0:
        live = slots >= 0
        k, v, slots = k[live], v[live], slots[live]
    page, offset = slots // kv.shape[3], slots % kv.shape[3]
    kv[page, 0, :, offset] = k.to(kv.dtype)
    kv[page, 1, :, offset] = v.to(kv.dtype)


def kv_write_reference(
    k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """A copy of kv after the writes, one token at a time."""
    result = kv.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, offset = divmod(slot, kv.shape[3])
            result[page, 0, :, offset] = k[row].to(kv.dtype)
            result[page, 1, :, offset] = v[row].to(kv.dtype)
    return result
