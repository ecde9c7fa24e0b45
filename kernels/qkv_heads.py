"""From a fused projection to heads: the last step before attention.

    qkv        [T, W], or [P, T, W], addends of it in planes; W = (QH + 2 KVH) D, columns contiguous
    addend     [T, W]              one more of them, of any type
    kv         [P, 2, KVH, PS, D]  one layer's view of the page pool; a [PS, D] tile is contiguous
    positions  [T]                 int64, rows of cos_sin
    slots      [T]                 int64, page * PS + offset in the page; -1 writes nothing
    cos_sin    [positions, D]      float32: cos of D/2 frequencies, then sin of the same
    q          [T, QH, D]          of the type of kv, or the one asked for
    magnitudes [P, 2, KVH, PS]     where kv is float8_e4m3fn: see ``e4m3``

One launch for what would be five: the planes are added up, q and k are RMS-normed per head where
the model does that, both are rotated, k and v are written to their pages (see ``rms_norm``,
``rope`` and ``kv_write`` for the definitions). All of it is computed in float32 and rounded once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.e4m3 import e4m3_codes, magnitude_of
from kernels.kv_write import kv_write_reference, require_magnitudes
from kernels.launch import chained, next_power_of_2, require, use_triton
from kernels.places import NewTokens
from kernels.planes import total
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope import rope_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMS norms over each head of q and of k, taken before the rotation."""

    q: torch.Tensor  # float32 [D]
    k: torch.Tensor
    eps: float


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _qkv_heads_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    addend_ptr,
    q_ptr,
    kv_ptr,
    positions_ptr,
    slots_ptr,
    cos_sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    magnitudes_ptr,
    eps,
    stride_part,
    stride_row,
    stride_page,
    stride_side,
    stride_head,
    stride_magnitudes,
    QH: tl.constexpr,
    KVH: tl.constexpr,
    HALF: tl.constexpr,
    PS: tl.constexpr,
    PARTS: tl.constexpr,
    ADDEND: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """BLOCK_H heads of one row: q heads come first, then k, then v."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_HALF)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    table = cos_sin_ptr + tl.load(positions_ptr + row) * (2 * HALF) + d
    cos = tl.load(table, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF, mask=d < HALF, other=0.0)[None, :]
    slot = tl.load(slots_ptr + row)
    live = (head < QH + 2 * KVH)[:, None] & (d < HALF)[None, :]
    a = tl.zeros((BLOCK_H, BLOCK_HALF), tl.float32)
    b = tl.zeros((BLOCK_H, BLOCK_HALF), tl.float32)
    at = qkv_ptr + row * stride_row + head[:, None] * (2 * HALF) + d[None, :]
    for part in tl.static_range(PARTS):
        a += tl.load(at + part * stride_part, mask=live, other=0.0).to(tl.float32)
        b += tl.load(at + part * stride_part + HALF, mask=live, other=0.0).to(tl.float32)
    if ADDEND:
        at = (
            addend_ptr + row * ((QH + 2 * KVH) * 2 * HALF) + head[:, None] * (2 * HALF) + d[None, :]
        )
        a += tl.load(at, mask=live, other=0.0).to(tl.float32)
        b += tl.load(at + HALF, mask=live, other=0.0).to(tl.float32)
    is_q = head < QH
    turns = (head < QH + KVH)[:, None]
    if HAS_NORMS:
        rstd = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
        norm_a = _norm(q_norm_ptr + d, k_norm_ptr + d, is_q, d < HALF)
        norm_b = _norm(q_norm_ptr + HALF + d, k_norm_ptr + HALF + d, is_q, d < HALF)
        a = tl.where(turns, a * rstd * norm_a, a)
        b = tl.where(turns, b * rstd * norm_b, b)
    first = tl.where(turns, a * cos - b * sin, a)
    second = tl.where(turns, b * cos + a * sin, b)
    mine = live & is_q[:, None]
    to = q_ptr + (row * QH + head[:, None]) * (2 * HALF) + d[None, :]
    tl.store(to, first.to(q_ptr.dtype.element_ty), mask=mine)
    tl.store(to + HALF, second.to(q_ptr.dtype.element_ty), mask=mine)
    side = tl.where(head < QH + KVH, 0, 1)
    place = slot // PS * stride_page + side * stride_side + (head - QH - side * KVH) * stride_head
    to = kv_ptr + place[:, None] + slot % PS * (2 * HALF) + d[None, :]
    mine = live & (head >= QH)[:, None] & (slot >= 0)
    if magnitudes_ptr is None:
        tl.store(to, first.to(kv_ptr.dtype.element_ty), mask=mine)
        tl.store(to + HALF, second.to(kv_ptr.dtype.element_ty), mask=mine)
    else:
        size = magnitude_of(tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1))
        at = magnitudes_ptr + slot // PS * stride_magnitudes + (head - QH) * PS + slot % PS
        tl.store(at, size, mask=(head >= QH) & (head < QH + 2 * KVH) & (slot >= 0))
        tl.store(to, e4m3_codes(first, size[:, None]), mask=mine)
        tl.store(to + HALF, e4m3_codes(second, size[:, None]), mask=mine)


@triton.jit
def _norm(at_q, at_k, is_q, inside):  # type: ignore[no-untyped-def]
    """The weights of each head, [heads, D / 2]."""
    q = tl.load(at_q, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(at_k, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_q[:, None], q[None, :], k[None, :])


def qkv_heads(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    *,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    addend: torch.Tensor | None = None,
    norms: HeadNorms | None = None,
    new: NewTokens | None = None,
    magnitudes: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    chain: bool = True,
) -> torch.Tensor:
    """Write the keys and values of T tokens to their pages; their rotated queries [T, QH, D].

    Args:
        new: spares a CPU finding again what all layers of a pass share.
        dtype: of the queries, where kv is of 8 bits; else it is kv's.
        chain: see ``launch.chained``.
    """
    T, width = qkv.shape[-2:]
    _, sides, KVH, PS, D = kv.shape
    QH = width // D - 2 * KVH
    require(QH > 0 and width % D == 0, f"qkv: {width} columns are not heads of {D}")
    require(sides == 2 and kv.stride(4) == 1 and kv.stride(3) == D, "kv: tiles must be contiguous")
    require(qkv.stride(-1) == 1, "qkv: columns must be contiguous")
    require(D % 2 == 0 and cos_sin.shape[1] == D, f"cos_sin: needs {D} columns")
    require_magnitudes(kv, magnitudes)
    require(magnitudes is None or dtype is not None, "dtype: of the queries, beside a kv of 8 bits")
    dtype = kv.dtype if magnitudes is None or dtype is None else dtype
    if not use_triton(qkv):
        new = new or NewTokens.of(kv, positions, slots, cos_sin)
        return _qkv_heads_torch(total(qkv, addend).to(dtype), kv, new, norms, magnitudes)
    q = torch.empty((T, QH, D), dtype=dtype, device=kv.device)
    if T == 0:
        return q
    parts = qkv.shape[0] if qkv.dim() == 3 else 1
    heads = min(8, next_power_of_2(QH + 2 * KVH))
    _qkv_heads_kernel[(T, triton.cdiv(QH + 2 * KVH, heads))](
        qkv,
        qkv if addend is None else addend.contiguous(),  # a pointer that may not be read
        q,
        kv if magnitudes is None else kv.view(torch.uint8),
        positions,
        slots,
        cos_sin,
        cos_sin if norms is None else norms.q,  # a pointer that is not read
        cos_sin if norms is None else norms.k,
        magnitudes,
        0.0 if norms is None else norms.eps,
        qkv.stride(0) if parts > 1 else 0,
        qkv.stride(-2),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        None if magnitudes is None else magnitudes.stride(0),
        QH=QH,
        KVH=KVH,
        HALF=D // 2,
        PS=PS,
        PARTS=parts,
        ADDEND=addend is not None,
        HAS_NORMS=norms is not None,
        BLOCK_H=heads,
        BLOCK_HALF=next_power_of_2(D // 2),
        num_warps=4,
        **chained(qkv, chain=chain),
    )
    return q


def _qkv_heads_torch(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    new: NewTokens,
    norms: HeadNorms | None,
    magnitudes: torch.Tensor | None,
) -> torch.Tensor:
    """Rotates inside qkv: activations of one pass, read only here."""
    (T, width), KVH, D = qkv.shape, kv.shape[2], kv.shape[4]
    heads = qkv.view(T, width // D, D)
    q, k = heads[:, : -2 * KVH], heads[:, -2 * KVH : -KVH]
    if norms is not None:
        for x, weight in ((q, norms.q), (k, norms.k)):
            x.copy_(rms_norm(x.reshape(-1, D), weight, norms.eps).view(x.shape))
    new.turn(heads[:, :-KVH])
    new.write(kv, heads[:, -2 * KVH :], magnitudes)
    return q


def _split(qkv: torch.Tensor, kv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (T, width), KVH, D = qkv.shape, kv.shape[2], kv.shape[4]
    heads = qkv.view(T, width // D, D)
    return torch.split(heads, [width // D - 2 * KVH, KVH, KVH], dim=1)


def qkv_heads_reference(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    *,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    addend: torch.Tensor | None = None,
    norms: HeadNorms | None = None,
    magnitudes: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, a copy of kv after the writes); magnitudes are written in place."""
    qkv = qkv.float().sum(0) if qkv.dim() == 3 else qkv.float()
    q, k, v = _split(qkv if addend is None else qkv + addend.float(), kv)
    if norms is not None:
        q, k = (
            rms_norm_reference(x.flatten(0, 1), weight.float(), norms.eps)[0].view(x.shape)
            for x, weight in ((q, norms.q), (k, norms.k))
        )
    q, k = rope_reference(q, k, positions, cos_sin)
    return q.to(dtype or kv.dtype), kv_write_reference(k, v, kv, slots, magnitudes)
