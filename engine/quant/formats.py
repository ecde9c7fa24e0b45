"""Unpacks GPTQ and AWQ into one layout: ``w[k, n] = (codes[k, n] - zeros[g, n]) * scales[g, n]``.

    GPTQ  qweight int32 [K/P, N]  field i of word r is row P r + i; P = 8 at 4 bits, 4 at 8 bits
          qzeros  int32 [G, N/P]  in order along N; v1 stores the zero minus one, v2 the zero
          scales  [G, N]; g_idx int32 [K] names each row's group (act-order), absent: k // group
    AWQ   qweight int32 [K, N/8]  nibble i of a word is column AWQ_ORDER[i] of its eight
          qzeros  int32 [G, N/8]  the same order, the zero itself
          scales  [G, N]

v1 takes one from every zero of a word by subtracting 0x11111111 from the word (0x01010101 at 8
bits), and is undone by adding it to the word: a zero of 0 had borrowed from its neighbour. For all
other zeros this is the same as adding one to each. The layout follows from the shapes; the zero's
version from the stored values where they tell, else from the claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from engine.errors import CheckpointInvalid
from engine.quant.schemes import GROUPS, Claim, Method, Zeros

SCALES = (torch.float16, torch.bfloat16, torch.float32)  # types of scales
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SAMPLE_COLUMNS = 256
_ONES = {4: 0x11111111, 8: 0x01010101}  # a one in every field of a word
LARGEST_WEIGHT = 1e3  # a dequantised weight beyond this is a misread one


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensors:
    """The tensors of one GPTQ or AWQ module, as stored."""

    module: str
    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """One module's weight, unpacked. Rows are in order of group when ``perm`` is set."""

    codes: torch.Tensor  # uint8 [K, N]
    scales: torch.Tensor  # fp16, bf16 or fp32 [G, N]
    zeros: torch.Tensor  # int16 [G, N]
    group: int  # rows of a group
    perm: torch.Tensor | None = None  # int64 [K]: row k of codes belongs to input perm[k]
    bits: int = 4  # or 8, of a code

    def dense(self) -> torch.Tensor:
        """The weight as F.linear wants it: float32 [N, K], inputs in their own order."""
        w = torch.empty(self.codes.shape, dtype=torch.float32, device=self.codes.device)
        for g, (zeros, scales) in enumerate(zip(self.zeros, self.scales.float(), strict=True)):
            rows = slice(g * self.group, (g + 1) * self.group)
            torch.mul(self.codes[rows].to(torch.int16) - zeros, scales, out=w[rows])
        if self.perm is not None:
            w = w[torch.argsort(self.perm)]
        return w.t().contiguous()


def unpack(packed: PackedTensors, size: tuple[int, int], claim: Claim) -> Quantised:
    """Unpack a module of ``size`` (K inputs, N outputs). Raises CheckpointInvalid naming it."""
    method, bits = _layout(packed, size)
    check_claim(packed.module, claim, method, bits)
    groups = packed.scales.shape[0] if packed.scales.ndim == 2 else 0
    check_scales(packed.module, packed.scales, (groups, size[1]))
    zeros = (groups, words(size[1], bits))
    if packed.qzeros.dtype != torch.int32 or tuple(packed.qzeros.shape) != zeros:
        refuse(
            packed.module,
            f"qzeros {packed.qzeros.dtype} {list(packed.qzeros.shape)}",
            f"int32 {list(zeros)}, {32 // bits} zeros to a word",
        )
    group = group_size(packed.module, groups, size[0], claim)
    if method == "awq":
        return _unpack_awq(packed, group, claim)
    return _unpack_gptq(packed, claim, rows=size[0], bits=bits, group=group)


def _layout(packed: PackedTensors, size: tuple[int, int]) -> tuple[Method, int]:
    """The method and the bits of a code, as the shape of the codes tells."""
    K, N = size
    layouts: dict[tuple[int, ...], tuple[Method, int]] = {
        (words(K, 4), N): ("gptq", 4),
        (words(K, 8), N): ("gptq", 8),
        (K, words(N, 4)): ("awq", 4),
    }
    found = tuple(packed.qweight.shape)
    if packed.qweight.dtype != torch.int32 or found not in layouts:
        refuse(
            packed.module,
            f"qweight {packed.qweight.dtype} {list(found)}",
            "int32 "
            + " or ".join(f"{list(s)} ({m}, {bits} bits)" for s, (m, bits) in layouts.items()),
        )
    return layouts[found]


def check_claim(module: str, claim: Claim, method: Method, bits: int) -> None:
    if claim.method not in (None, method):
        refuse(module, f"{method} tensors", f"{claim.method}, as the config says")
    if claim.bits not in (None, bits):
        refuse(module, f"{bits} bits to a weight", f"{claim.bits}, as the config says")


def check_scales(module: str, scales: torch.Tensor, shape: tuple[int, ...]) -> None:
    if 0 in shape or tuple(scales.shape) != shape or scales.dtype not in SCALES:
        wanted = ", ".join("G" if not extent else str(extent) for extent in shape)
        refuse(
            module,
            f"scales {scales.dtype} {list(scales.shape)}",
            f"float16, bfloat16 or float32 [{wanted}]",
        )


def group_size(module: str, groups: int, rows: int, claim: Claim) -> int:
    """Rows per group, where ``groups`` make up all rows."""
    claimed = rows if claim.group_size == -1 else claim.group_size
    if claimed is not None and groups != -(-rows // claimed):
        refuse(module, f"{groups} groups", f"{-(-rows // claimed)} of {claimed} rows")
    fitting = (size for size in GROUPS if size > 0 and -(-rows // size) == groups)
    group = claimed or (rows if groups == 1 else next(fitting, -(-rows // groups)))
    if group != rows and group not in GROUPS:
        refuse(module, f"groups of {group} rows", "32, 64, 128 or all rows")
    return group


def _unpack_awq(packed: PackedTensors, group: int, claim: Claim) -> Quantised:
    if packed.g_idx is not None:
        refuse(packed.module, "g_idx beside AWQ tensors", "none")
    N = packed.scales.shape[1]
    zeros = unpack_fields(packed.qzeros, 4, dim=1, count=N, order=AWQ_ORDER).to(torch.int16)
    if claim.symmetric and bool((zeros != 8).any()):
        refuse(packed.module, f"zeros {span(zeros)} with zero_point=false", "8 everywhere")
    codes = unpack_fields(packed.qweight, 4, dim=1, count=N, order=AWQ_ORDER)
    weight = Quantised(codes=codes, scales=packed.scales, zeros=zeros, group=group)
    check_weight(packed.module, weight)
    return weight


def _unpack_gptq(
    packed: PackedTensors, claim: Claim, *, rows: int, bits: int, group: int
) -> Quantised:
    N = packed.scales.shape[1]
    codes = unpack_fields(packed.qweight, bits, dim=0, count=rows)  # [K, N]
    stored = unpack_fields(packed.qzeros, bits, dim=1, count=N)  # [G, N]
    perm = permutation(packed.module, packed.g_idx, rows, group, claim)
    if perm is not None:
        codes = codes[perm]
    weight = Quantised(
        bits=bits, codes=codes, scales=packed.scales, zeros=stored.short(), group=group, perm=perm
    )
    if _version(packed.module, weight, claim) == "v1":
        zeros = unpack_fields(packed.qzeros + _ONES[bits], bits, dim=1, count=N)
        weight = replace(weight, zeros=zeros.short())
    check_weight(packed.module, weight)
    return weight


def permutation(
    module: str, g_idx: torch.Tensor | None, rows: int, group: int, claim: Claim
) -> torch.Tensor | None:
    """Inputs in order of group (act-order), or None when they already are."""
    if g_idx is None:
        if claim.act_order and group < rows:
            refuse(module, "no g_idx", "one, as the config says that inputs were reordered")
        return None
    if tuple(g_idx.shape) != (rows,):
        refuse(module, f"g_idx {list(g_idx.shape)}", f"[{rows}]")
    groups, expected = g_idx.long(), torch.arange(rows, device=g_idx.device) // group
    if torch.equal(groups, expected):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], expected):
        refuse(module, "g_idx with uneven groups", f"{group} rows in each group")
    return order


def _version(module: str, stored: Quantised, claim: Claim) -> Zeros:
    """Whether the stored zeros are one too low (v1)."""
    centre = 1 << stored.bits - 1  # of a symmetric module, everywhere
    versions: dict[int, Zeros] = {centre - 1: "v1", centre: "v2"}
    low, high = int(stored.zeros.min()), int(stored.zeros.max())
    constant = versions.get(low) if low == high else None
    if claim.symmetric and (constant is None or claim.zeros not in (None, constant)):
        wanted = [f"{z} ({v})" for z, v in versions.items() if claim.zeros in (None, v)]
        found = f"zeros {span(stored.zeros)} with sym=true"
        refuse(module, found, f"{' or '.join(wanted)} everywhere")
    if constant is not None and (claim.symmetric or claim.zeros is None):
        return constant
    told = _told_by_centre(stored)
    if claim.zeros is not None and told not in (None, claim.zeros):
        refuse(module, f"zeros that fit {told}", f"{claim.zeros}, as the config says")
    return claim.zeros or told or "v1"


def _told_by_centre(stored: Quantised) -> Zeros | None:
    """The version that puts the mean weight near zero, when only one does and clearly so."""
    codes = stored.codes[:, :SAMPLE_COLUMNS].float()
    groups = torch.arange(codes.shape[0], device=codes.device) // stored.group
    shape = stored.zeros[:, :SAMPLE_COLUMNS].shape
    means = torch.zeros(shape, device=codes.device)
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


def check_weight(module: str, weight: Quantised) -> None:
    """Dequantise a sample: it must be finite and of a weight's magnitude."""
    if not bool(weight.scales.isfinite().all()):
        refuse(module, "scales that are not finite", "finite scales")
    columns = slice(0, SAMPLE_COLUMNS)
    sample = replace(
        weight,
        codes=weight.codes[:, columns],
        scales=weight.scales[:, columns],
        zeros=weight.zeros[:, columns],
    ).dense()
    if (largest := float(sample.abs().max())) > LARGEST_WEIGHT:
        refuse(module, f"weights up to {largest:.3g}", f"at most {LARGEST_WEIGHT:g}")


def words(count: int, bits: int) -> int:
    """That hold so many values; the last may be filled up."""
    return -(-count * bits // 32)


def unpack_fields(
    packed: torch.Tensor, bits: int, *, dim: int, count: int, order: Sequence[int] | None = None
) -> torch.Tensor:
    """uint8: ``count`` values along ``dim``, field i of a word at order[i], else in order."""
    fields = 32 // bits
    shape = [*packed.shape]
    shape.insert(dim + 1, fields)
    out = torch.empty(shape, dtype=torch.uint8, device=packed.device)
    for i, place in enumerate(order or range(fields)):
        out.select(dim + 1, place).copy_((packed >> (bits * i)) & ((1 << bits) - 1))
    return out.flatten(dim, dim + 1).narrow(dim, 0, count)


def span(zeros: torch.Tensor) -> str:
    return f"{int(zeros.min())}..{int(zeros.max())}"


def refuse(module: str, found: str, expected: str) -> NoReturn:
    raise CheckpointInvalid(f"{module}: found {found}; expected {expected}")
