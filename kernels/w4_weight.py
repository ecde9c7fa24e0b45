"""A matrix of 4-bit codes, laid out for matmul_w4a16.

    codes   [K, N]  0 .. 15
    scales  [G, N]  one row per group of `group` consecutive rows of codes
    zeros   [G, N]  0 .. 16; absent means 8 everywhere

    W[perm[k], n] = (codes[k, n] - zeros[k // group, n]) * scales[k // group, n]

perm orders the rows of W by group when the checkpoint quantised them in another order (act-order);
without one it is the identity.

Layout. K is cut into blocks of 4 S rows (S = 64, or 32 where that needs less padding or a group
demands it). Nibble j of word w of a block is row block * 4 S + j * S + w, so that each nibble
plane, a *slab*, is an elementwise function of the words and lines up with S adjacent columns of
x. The words of 128 columns and one block are one contiguous tile.
"""

from dataclasses import dataclass

import torch

from kernels import w4_hopper
from kernels.launch import cdiv, require, round_up

TILE_N = 128  # output columns of a stored tile
SYMMETRIC_ZERO = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class W4Weight:
    """A packed matrix, padded to whole tiles."""

    rows: int  # K
    columns: int  # N
    group: int  # rows that share a scale
    slab: int  # S, rows of one nibble plane of a block
    words: torch.Tensor  # [Np / 128, Kp / (4 S), 128, S] int16
    scales: torch.Tensor  # [G, Np]
    zeros: torch.Tensor | None  # [G, Np] of the type of scales; None: 8
    perm: torch.Tensor | None  # [K] int64, column of x that packed row k multiplies
    meta: torch.Tensor | None = None  # [G, Np] int32 for w4_hopper, where it takes this matrix

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        parts = (self.words, self.scales, self.zeros, self.perm, self.meta)
        return sum(part.nbytes for part in parts if part is not None)


def pack_w4(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    *,
    group: int,
    perm: torch.Tensor | None = None,
) -> W4Weight:
    """Lay a quantised matrix out for the kernel.

    Args:
        codes: [K, N] integers, rows ordered by group: row k belongs to group k // group.
        scales: [G, N]; its type is kept.
        zeros: [G, N] integers, up to 16, or None when all are 8.
        group: a multiple of 32, or at least K.
        perm: [K], the column of x (= the row of W) that row k of codes stands for.
    """
    K, N = codes.shape
    group = min(group, K)
    groups = cdiv(K, group)
    require(group % 32 == 0 or group == K, f"group: {group} is neither a multiple of 32 nor K={K}")
    require(scales.shape == (groups, N), f"scales: {tuple(scales.shape)} is not {(groups, N)}")
    slab = _slab(K, group)
    padded_n, padded_k = round_up(N, TILE_N), round_up(K, 4 * slab)
    pad = torch.nn.functional.pad
    words = _words(pad(codes, (0, padded_n - N, 0, padded_k - K)), slab)
    zero_points = None if zeros is None else pad(zeros, (0, padded_n - N)).to(scales.dtype)
    padded_scales = pad(scales, (0, padded_n - N)).contiguous()
    hopper = padded_n == N and w4_hopper.takes(K, group, scales.dtype, words.device)
    return W4Weight(
        rows=K,
        columns=N,
        group=group,
        slab=slab,
        words=words,
        scales=padded_scales,
        zeros=zero_points,
        perm=None if perm is None else perm.to(codes.device, torch.int64),
        meta=w4_hopper.pack_meta(padded_scales, zero_points) if hopper else None,
    )


def _slab(rows: int, group: int) -> int:
    """64 where neither padding nor the groups suffer from it, else 32."""
    fits = group % 64 == 0 or group == rows
    return 64 if fits and round_up(rows, 256) == round_up(rows, 128) else 32


def _words(codes: torch.Tensor, slab: int) -> torch.Tensor:
    """Nibble j of word w of a block is the code of row block * 4 S + j * S + w."""
    K, N = codes.shape
    planes = codes.t().reshape(N // TILE_N, TILE_N, K // (4 * slab), 4, slab).to(torch.int32)
    word = planes[..., 0, :] | planes[..., 1, :] << 4 | planes[..., 2, :] << 8
    word = word | planes[..., 3, :] << 12
    signed = torch.where(word >= 1 << 15, word - (1 << 16), word).to(torch.int16)
    return signed.transpose(1, 2).contiguous()


def unpack_w4(w: W4Weight) -> torch.Tensor:
    """The codes [K, N] as uint8, in packed order."""
    word = w.words.transpose(1, 2).to(torch.int32) & 0xFFFF  # [N tiles, 128, K blocks, S]
    planes = torch.stack([word >> 4 * j & 15 for j in range(4)], dim=3)
    codes = planes.reshape(w.words.shape[0] * TILE_N, -1).t()
    return codes[: w.rows, : w.columns].to(torch.uint8)


def dequantize_w4(w: W4Weight, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """W [K, N] in checkpoint order, computed in float32 and rounded to dtype once.

    dtype defaults to the type of the scales.
    """
    span = torch.arange(w.rows, device=w.words.device) // w.group
    scales = w.scales[:, : w.columns].float()[span]
    zeros = SYMMETRIC_ZERO if w.zeros is None else w.zeros[:, : w.columns].float()[span]
    packed = ((unpack_w4(w).float() - zeros) * scales).to(dtype or w.scales.dtype)
    if w.perm is None:
        return packed
    return torch.empty_like(packed).index_copy_(0, w.perm, packed)
