"""Unpacks 4-bit weights into one layout: ``w[k, n] = (codes[k, n] - zeros[g, n]) * scales[g, n]``.

    GPTQ  qweight int32 [K/8, N]  nibble i of word r is row 8r + i
          qzeros  int32 [G, N/8]  in order along N; v1 stores the zero minus one, v2 the zero
          scales  [G, N]; g_idx int32 [K] names each row's group (act-order), absent: k // group
    AWQ   qweight int32 [K, N/8]  nibble i of a word is column AWQ_ORDER[i] of its eight
          qzeros  int32 [G, N/8]  the same order, the zero itself
          scales  [G, N]

A v1 zero stored as 15 means 16, so zeros are int16 and are never masked again. The layout follows
from the shapes; the zero's version from the stored values where they tell, else from the claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from engine.errors import CheckpointInvalid
from engine.quant.schemes import Claim, Zeros

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SAMPLE_COLUMNS = 256
_CONSTANT: Mapping[int, Zeros] = {7: "v1", 8: "v2"}  # what a symmetric module stores everywhere
LARGEST_WEIGHT = 1e3  # a dequantised weight beyond this is a misread one


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensors:
    """The tensors of one quantised module, as stored."""

    module: str
    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """One module's 4-bit weight, unpacked. Rows are in order of group when ``perm`` is set."""

    codes: torch.Tensor  # uint8 [K, N]
    scales: torch.Tensor  # fp16, bf16 or fp32 [G, N]
    zeros: torch.Tensor  # int16 [G, N]
    group: int  # rows of a group
    perm: torch.Tensor | None = None  # int64 [K]: row k of codes belongs to input perm[k]

    def dense(self) -> torch.Tensor:
        """The weight as F.linear wants it: float32 [N, K], inputs in their own order."""
        w = torch.empty(self.codes.shape, dtype=torch.float32)
        for g, (zeros, scales) in enumerate(zip(self.zeros, self.scales.float(), strict=True)):
            rows = slice(g * self.group, (g + 1) * self.group)
            torch.mul(self.codes[rows].to(torch.int16) - zeros, scales, out=w[rows])
        if self.perm is not None:
            w = w[torch.argsort(self.perm)]
        return w.t().contiguous()


def unpack(packed: PackedTensors, size: tuple[int, int], claim: Claim) -> Quantised:
    """Unpack a module of ``size`` (K inputs, N outputs). Raises CheckpointInvalid naming it."""
    K, N = size
    awq, gptq = (K, N // 8), (K // 8, N)
    found = tuple(packed.qweight.shape)
    if packed.qweight.dtype != torch.int32 or found not in (awq, gptq):
        _refuse(
            packed.module,
            f"qweight {packed.qweight.dtype} {list(found)}",
            f"int32 {list(gptq)} (GPTQ, 4 bits) or {list(awq)} (AWQ gemm)",
        )
    method = "awq" if found == awq else "gptq"
    if claim.method not in (None, method):
        _refuse(packed.module, f"{method} tensors", f"{claim.method}, as the config says")
    group = _group(packed, size, claim)
    return (
        _unpack_awq(packed, group, claim) if method == "awq" else _unpack_gptq(packed, group, claim)
    )


def _group(packed: PackedTensors, size: tuple[int, int], claim: Claim) -> int:
    """Rows per group, from the shape of the scales; also checks the shape of the zeros."""
    K, N = size
    scales, zeros = tuple(packed.scales.shape), tuple(packed.qzeros.shape)
    groups = scales[0] if len(scales) == 2 else 0
    if groups < 1 or scales != (groups, N) or not packed.scales.dtype.is_floating_point:
        _refuse(packed.module, f"scales {packed.scales.dtype} {list(scales)}", f"float [G, {N}]")
    if packed.qzeros.dtype != torch.int32 or zeros != (groups, N // 8):
        _refuse(
            packed.module,
            f"qzeros {packed.qzeros.dtype} {list(zeros)}",
            f"int32 {[groups, N // 8]}, eight zeros to a word",
        )
    claimed = K if claim.group_size == -1 else claim.group_size
    if claimed is not None and groups != -(-K // claimed):
        _refuse(packed.module, f"{groups} groups", f"{-(-K // claimed)} of {claimed} rows")
    group = claimed or -(-K // groups)
    if group != K and group not in (32, 64, 128):
        _refuse(packed.module, f"groups of {group} rows", "32, 64, 128 or all rows")
    return group


def _unpack_awq(packed: PackedTensors, group: int, claim: Claim) -> Quantised:
    if packed.g_idx is not None:
        _refuse(packed.module, "g_idx beside AWQ tensors", "none")
    zeros = _nibbles(packed.qzeros, AWQ_ORDER).flatten(1).to(torch.int16)
    if claim.symmetric and bool((zeros != 8).any()):
        _refuse(packed.module, f"zeros {_span(zeros)} with zero_point=false", "8 everywhere")
    codes = _nibbles(packed.qweight, AWQ_ORDER).flatten(1)
    weight = Quantised(codes=codes, scales=packed.scales, zeros=zeros, group=group)
    _check(packed.module, weight)
    return weight


def _unpack_gptq(packed: PackedTensors, group: int, claim: Claim) -> Quantised:
    codes = _nibbles(packed.qweight, range(8), dim=1).flatten(0, 1)  # [K, N]
    stored = _nibbles(packed.qzeros, range(8)).flatten(1).to(torch.int16)  # [G, N]
    perm = _permutation(packed, codes.shape[0], group)
    if perm is not None:
        codes = codes[perm]
    weight = Quantised(codes=codes, scales=packed.scales, zeros=stored, group=group, perm=perm)
    if _version(packed.module, weight, claim) == "v1":
        weight = replace(weight, zeros=stored + 1)
    _check(packed.module, weight)
    return weight


def _permutation(packed: PackedTensors, rows: int, group: int) -> torch.Tensor | None:
    """Inputs in order of group (act-order), or None when they already are."""
    if packed.g_idx is None:
        return None
    if tuple(packed.g_idx.shape) != (rows,):
        _refuse(packed.module, f"g_idx {list(packed.g_idx.shape)}", f"[{rows}]")
    g_idx, expected = packed.g_idx.long(), torch.arange(rows) // group
    if torch.equal(g_idx, expected):
        return None
    order = torch.argsort(g_idx, stable=True)
    if not torch.equal(g_idx[order], expected):
        _refuse(packed.module, "g_idx with uneven groups", f"{group} rows in each group")
    return order


def _version(module: str, stored: Quantised, claim: Claim) -> Zeros:
    """Whether the stored zeros are one too low (v1)."""
    low, high = int(stored.zeros.min()), int(stored.zeros.max())
    constant = _CONSTANT.get(low) if low == high else None
    if claim.symmetric:
        if constant is None or claim.zeros not in (None, constant):
            wanted = {"v1": "7", "v2": "8", None: "7 (v1) or 8 (v2)"}[claim.zeros]
            _refuse(module, f"zeros {_span(stored.zeros)} with sym=true", f"{wanted} everywhere")
        return constant
    if claim.zeros is None and constant is not None:
        return constant
    told = _told_by_centre(stored)
    if claim.zeros is not None and told not in (None, claim.zeros):
        _refuse(module, f"zeros that fit {told}", f"{claim.zeros}, as the config says")
    return claim.zeros or told or "v1"


def _told_by_centre(stored: Quantised) -> Zeros | None:
    """The version that puts the mean weight near zero, when only one does and clearly so."""
    codes = stored.codes[:, :SAMPLE_COLUMNS].float()
    groups = torch.arange(codes.shape[0]) // stored.group
    means = torch.zeros(stored.zeros[:, :SAMPLE_COLUMNS].shape)
    means.index_add_(0, groups, codes)
    means /= torch.bincount(groups)[:, None]
    distance = means - stored.zeros[:, :SAMPLE_COLUMNS]  # in units of scale; v1: about 1
    doubt = float(distance.std()) / distance.numel() ** 0.5 if distance.numel() > 1 else 1.0
    if doubt > 0.1 or float(distance.std()) > 1.5:
        return None  # too few zeros, or they do not follow the codes: nothing to learn from
    mean = float(distance.mean())
    if abs(mean) < 0.25:
        return "v2"
    return "v1" if abs(mean - 1) < 0.25 else None


def _check(module: str, weight: Quantised) -> None:
    """Dequantise a sample: it must be finite and of a weight's magnitude."""
    if not bool(weight.scales.isfinite().all()):
        _refuse(module, "scales that are not finite", "finite scales")
    columns = slice(0, SAMPLE_COLUMNS)
    sample = replace(
        weight,
        codes=weight.codes[:, columns],
        scales=weight.scales[:, columns],
        zeros=weight.zeros[:, columns],
    ).dense()
    if (largest := float(sample.abs().max())) > LARGEST_WEIGHT:
        _refuse(module, f"weights up to {largest:.3g}", f"at most {LARGEST_WEIGHT:g}")


def _nibbles(words: torch.Tensor, order: Sequence[int], dim: int = 2) -> torch.Tensor:
    """uint8, with a new dimension of 8: nibble i of a word goes to place order[i] there."""
    shape = [*words.shape]
    shape.insert(dim, 8)
    out = torch.empty(shape, dtype=torch.uint8)
    for i, place in enumerate(order):
        out.select(dim, place).copy_((words >> (4 * i)) & 0xF)
    return out


def _span(zeros: torch.Tensor) -> str:
    return f"{int(zeros.min())}..{int(zeros.max())}"


def _refuse(module: str, found: str, expected: str) -> NoReturn:
    raise CheckpointInvalid(f"{module}: found {found}; expected {expected}")
