"""Unpacks ``pack-quantized`` modules of compressed-tensors into the layout of ``formats``.

    weight_packed      int32 [N, K/P]  field i of word w is input P w + i; P = 8 at 4 bits, 4 at 8
    weight_scale       [N, G]
    weight_zero_point  int32 [N/P, G]  packed along N; absent when symmetric
    weight_shape       [2]             N, K: a last word may be filled up
    weight_g_idx       int32 [K]       each input's group (act-order), absent: k // group

Codes and zeros are signed numbers, packed with half their range added: 8 at 4 bits, 128 at 8. The
sum is what is unpacked here, and the same offset on both cancels; a symmetric zero is that half.
"""

from dataclasses import dataclass

import torch

from engine.quant.formats import (
    Quantised,
    check_claim,
    check_scales,
    check_weight,
    group_size,
    permutation,
    refuse,
    span,
    unpack_fields,
    words,
)
from engine.quant.schemes import BITS, Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensors:
    """The tensors of one module, as stored."""

    module: str
    weight_packed: torch.Tensor
    weight_scale: torch.Tensor
    weight_shape: torch.Tensor
    weight_zero_point: torch.Tensor | None = None
    weight_g_idx: torch.Tensor | None = None


def unpack_compressed(packed: CompressedTensors, size: tuple[int, int], claim: Claim) -> Quantised:
    """Unpack a module of ``size`` (K inputs, N outputs). Raises CheckpointInvalid naming it."""
    K, N = size
    module, scales = packed.module, packed.weight_scale
    if packed.weight_shape.tolist() != [N, K]:
        refuse(module, f"weight_shape {packed.weight_shape.tolist()}", f"{[N, K]}")
    bits = _bits(packed, size)
    check_claim(module, claim, "compressed-tensors", bits)
    groups = scales.shape[1] if scales.ndim == 2 else 0
    check_scales(module, scales, (N, groups))
    group = group_size(module, groups, K, claim)
    codes = unpack_fields(packed.weight_packed, bits, dim=1, count=K).t().contiguous()
    zeros = _zeros(packed, bits, claim)
    perm = permutation(module, packed.weight_g_idx, K, group, claim)
    weight = Quantised(
        bits=bits,
        codes=codes if perm is None else codes[perm],
        scales=scales.t().contiguous(),
        zeros=zeros,
        group=group,
        perm=perm,
    )
    check_weight(module, weight)
    return weight


def _bits(packed: CompressedTensors, size: tuple[int, int]) -> int:
    """Of a code, as the shape of the words tells."""
    K, N = size
    shapes = {(N, words(K, bits)): bits for bits in BITS}
    codes = packed.weight_packed
    found = tuple(codes.shape)
    if codes.dtype != torch.int32 or found not in shapes:
        wanted = " or ".join(f"{list(shape)} ({bits} bits)" for shape, bits in shapes.items())
        refuse(packed.module, f"weight_packed {codes.dtype} {list(found)}", f"int32 {wanted}")
    return shapes[found]


def _zeros(packed: CompressedTensors, bits: int, claim: Claim) -> torch.Tensor:
    """int16 [G, N], offset as the codes are."""
    N, groups = packed.weight_scale.shape
    stored = packed.weight_zero_point
    half = 1 << bits - 1
    if stored is None:
        if claim.symmetric is False:
            refuse(packed.module, "no weight_zero_point", "one, with symmetric=false")
        return torch.full((groups, N), half, dtype=torch.int16, device=packed.weight_scale.device)
    shape = (words(N, bits), groups)
    if stored.dtype != torch.int32 or tuple(stored.shape) != shape:
        refuse(
            packed.module,
            f"weight_zero_point {stored.dtype} {list(stored.shape)}",
            f"int32 {list(shape)}, {32 // bits} zeros to a word",
        )
    zeros = unpack_fields(stored, bits, dim=0, count=N).t().to(torch.int16).contiguous()
    if claim.symmetric and bool((zeros != half).any()):
        found = f"zeros {span(zeros - half)} with symmetric=true"
        refuse(packed.module, found, "0 everywhere")
    return zeros
