"""Scatter new keys and values into their pages.

    k, v   [T, KVH, D]           D contiguous
    kv     [P, 2, KVH, PS, D]    one layer's view of the page pool; a [PS, D] tile is contiguous
    slots  [T]                   int64, page * PS + offset in the page; -1 writes nothing
    magnitudes [P, 2, KVH, PS]   where kv is float8_e4m3fn: see ``e4m3``

Slots of one call are distinct, so no order of writes is implied.
"""

import torch
import triton
import triton.language as tl

from kernels.e4m3 import e4m3_codes, magnitude_of, to_e4m3
from kernels.launch import next_power_of_2, require, use_triton


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _kv_write_kernel(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    kv_ptr,
    slots_ptr,
    magnitudes_ptr,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_page,
    stride_side,
    stride_head,
    stride_magnitudes,
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
        if magnitudes_ptr is None:
            tl.store(to, k.to(kv_ptr.dtype.element_ty), mask=live)
            tl.store(to + stride_side, v.to(kv_ptr.dtype.element_ty), mask=live)
        else:
            at = magnitudes_ptr + slot // PS * stride_magnitudes + slot % PS
            at += tl.arange(0, BLOCK_H) * PS
            inside = tl.arange(0, BLOCK_H) < KVH
            k = tl.where(live, k.to(tl.float32), 0.0)
            size = magnitude_of(tl.max(tl.abs(k), axis=1))
            tl.store(at, size, mask=inside)
            tl.store(to, e4m3_codes(k, size[:, None]), mask=live)
            v = tl.where(live, v.to(tl.float32), 0.0)
            size = magnitude_of(tl.max(tl.abs(v), axis=1))
            tl.store(at + KVH * PS, size, mask=inside)
            tl.store(to + stride_side, e4m3_codes(v, size[:, None]), mask=live)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    magnitudes: torch.Tensor | None = None,
) -> None:
    """Store the keys and values of T tokens at their slots."""
    T, KVH, D = k.shape
    _, sides, heads, PS, _ = kv.shape
    require(v.shape == k.shape, f"v: {tuple(v.shape)} does not match k {tuple(k.shape)}")
    require((sides, heads, kv.shape[4]) == (2, KVH, D), f"kv: {tuple(kv.shape)} does not fit k")
    require(kv.stride(4) == 1 and kv.stride(3) == D, "kv: a page's tile must be contiguous")
    require(k.stride(2) == 1 and v.stride(2) == 1, "k, v: heads must be contiguous")
    require_magnitudes(kv, magnitudes)
    if not use_triton(k):
        _kv_write_torch(k, v, kv, slots, magnitudes)
    elif T:
        _kv_write_kernel[(T,)](
            k,
            v,
            kv if magnitudes is None else kv.view(torch.uint8),
            slots,
            magnitudes,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            None if magnitudes is None else magnitudes.stride(0),
            KVH=KVH,
            PS=PS,
            D=D,
            BLOCK_H=next_power_of_2(KVH),
            BLOCK_D=next_power_of_2(D),
            num_warps=4,
        )


def require_magnitudes(kv: torch.Tensor, magnitudes: torch.Tensor | None) -> None:
    """They are given where kv has 8 bits, and only there."""
    P, sides, KVH, PS, _ = kv.shape
    narrow = kv.dtype == torch.float8_e4m3fn
    require(narrow == (magnitudes is not None), "magnitudes: belong to a kv of float8_e4m3fn")
    if magnitudes is not None:
        fits = magnitudes.shape == (P, sides, KVH, PS)
        fits = fits and magnitudes.stride()[1:] == (KVH * PS, PS, 1)
        require(fits and magnitudes.dtype == torch.float32, "magnitudes: do not fit kv")


def _kv_write_torch(
    k: torch.Tensor,
    v: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    magnitudes: torch.Tensor | None,
) -> None:
    if slots.numel() and int(slots.min()) < 0:
        live = slots >= 0
        k, v, slots = k[live], v[live], slots[live]
    page, offset = slots // kv.shape[3], slots % kv.shape[3]
    for side, values in enumerate((k, v)):
        if magnitudes is None:
            kv[page, side, :, offset] = values.to(kv.dtype)
        else:
            codes, size = to_e4m3(values)
            kv.view(torch.uint8)[page, side, :, offset] = codes.view(torch.uint8)
            magnitudes[page, side, :, offset] = size


def kv_write_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    magnitudes: torch.Tensor | None = None,
) -> torch.Tensor:
    """A copy of kv after the writes, one token at a time; magnitudes are written in place."""
    result = kv.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, offset = divmod(slot, kv.shape[3])
            for side, values in enumerate((k[row], v[row])):
                if magnitudes is not None:
                    values, magnitudes[page, side, :, offset] = to_e4m3(values)
                result[page, side, :, offset] = values.to(kv.dtype)
    return result
