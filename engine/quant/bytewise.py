"""Reads modules whose weight is stored as it lies, a byte a number, beside its scales.

    weight             float8_e4m3fn or int8 [N, K]
    weight_scale       one number, or [N], [N, 1], [N, G], or of blocks: [N / BN, K / BK]
    weight_scale_inv   the same, as DeepSeek and Qwen3 call it: what a weight is multiplied with
    weight_zero_point  int8, as weight_scale; absent when symmetric (int8 alone)

Compressed-tensors calls these float-quantized and int-quantized, others ``fp8``. Some of them say
how inputs would be quantised too: here inputs stay as they are, which is nearer to the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.quant.formats import SCALES, Quantised, check_weight, refuse, span
from engine.quant.schemes import Claim

BLOCK = (128, 128)  # outputs, inputs: of weight_scale_inv where the config is silent
HALF = 128
POWERS = torch.float8_e8m0fnu  # of two, as scales
CODES = 0x7F  # of e4m3: NaN, whatever the sign
LARGEST_WEIGHT = 1e3  # a weight beyond this is a misread one
ROWS = 4096  # looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8:
    """One module's weight: ``w[n, k] = values[n, k] * scales[n, k // group]``."""

    values: torch.Tensor  # float8_e4m3fn [N, K]
    scales: torch.Tensor  # float32 [N, G]
    group: int  # inputs of a scale

    def dense(self) -> torch.Tensor:
        """float32 [N, K]."""
        w = self.values.float()
        for g, scale in enumerate(self.scales.unbind(1)):
            w[:, g * self.group : (g + 1) * self.group] *= scale[:, None]
        return w


def unpack_bytes(
    module: str, tensors: Mapping[str, torch.Tensor], size: tuple[int, int], claim: Claim
) -> Quantised | Float8:
    """A module of ``size`` (K inputs, N outputs). Raises CheckpointInvalid naming it."""
    K, N = size
    weight = tensors["weight"]
    if tuple(weight.shape) != (N, K):
        refuse(module, f"weight {weight.dtype} {list(weight.shape)}", f"[{N}, {K}]")
    kind = "int" if weight.dtype == torch.int8 else "float"
    if claim.kind not in (None, kind) or claim.bits not in (None, 8):
        said = f"{claim.kind or kind} of {claim.bits or 8} bits, as the config says"
        refuse(module, f"weight {weight.dtype}", said)
    scales, group = _scales(module, tensors, size, claim)
    if kind == "int":
        return _integers(module, tensors, scales, group, claim)
    if "weight_zero_point" in tensors and bool((tensors["weight_zero_point"] != 0).any()):
        refuse(module, "weight_zero_point beside a float8 weight", "none")
    found = Float8(values=weight, scales=scales, group=group)
    _check(module, found)
    return found


def _scales(
    module: str, tensors: Mapping[str, torch.Tensor], size: tuple[int, int], claim: Claim
) -> tuple[torch.Tensor, int]:
    """float32 [N, G], and the inputs of a group."""
    K, N = size
    names = [name for name in ("weight_scale", "weight_scale_inv") if name in tensors]
    if len(names) != 1:
        refuse(module, f"{' and '.join(names) or 'no weight_scale'}", "one of them")
    stored = tensors[names[0]]
    scales = stored.float()
    if stored.dtype not in (*SCALES, POWERS) or not bool(scales.isfinite().all()):
        refuse(module, f"{names[0]} {stored.dtype} or not finite", "finite floats")
    block = claim.block or (BLOCK if names[0] == "weight_scale_inv" and scales.ndim == 2 else None)
    if block is not None:
        shape = (-(-N // block[0]), -(-K // block[1]))
        if tuple(scales.shape) != shape:
            refuse(module, f"{names[0]} {list(scales.shape)}", f"{list(shape)} of blocks {block}")
        return scales.repeat_interleave(block[0], 0)[:N].contiguous(), block[1]
    grouped = claim.group_size not in (None, -1)
    if scales.numel() == 1 and not grouped:
        return scales.reshape(1, 1).expand(N, 1).contiguous(), K
    if tuple(scales.shape) in ((N,), (N, 1)) and not grouped:
        return scales.reshape(N, 1), K
    groups = scales.shape[1] if scales.ndim == 2 and scales.shape[0] == N else 0
    group = claim.group_size or (K // groups if groups and K % groups == 0 else 0)
    if not groups or group < 1 or -(-K // group) != groups:
        wanted = (
            f"[{N}, G], G groups of {claim.group_size}" if grouped else f"[], [{N}, 1], [{N}, G]"
        )
        refuse(module, f"{names[0]} {list(scales.shape)}", wanted)
    return scales, group


def _integers(
    module: str,
    tensors: Mapping[str, torch.Tensor],
    scales: torch.Tensor,
    group: int,
    claim: Claim,
) -> Quantised:
    weight = tensors["weight"]
    zeros = torch.full(scales.t().shape, HALF, dtype=torch.int16, device=weight.device)
    stored = tensors.get("weight_zero_point")
    if stored is None and claim.symmetric is False:
        refuse(module, "no weight_zero_point", "one, with symmetric=false")
    if stored is not None:
        if stored.dtype != torch.int8 or stored.numel() not in (1, scales.numel()):
            found = f"weight_zero_point {stored.dtype} {list(stored.shape)}"
            refuse(module, found, f"int8 {list(scales.shape)}")
        if claim.symmetric and bool((stored != 0).any()):
            refuse(module, f"zeros {span(stored)} with symmetric=true", "0 everywhere")
        given = stored.short().reshape(scales.shape) if stored.numel() > 1 else stored.short()
        zeros = zeros + given.t() if stored.numel() > 1 else zeros + given.reshape(1, 1)
    codes = (weight.view(torch.uint8) ^ HALF).t().contiguous()  # int8 + 128
    result = Quantised(
        bits=8, codes=codes, scales=scales.t().contiguous(), zeros=zeros, group=group
    )
    check_weight(module, result)
    return result


def _check(module: str, weight: Float8) -> None:
    parts = zip(torch.split(weight.values, ROWS), torch.split(weight.scales, ROWS), strict=True)
    for values, scales in parts:
        if bool(((values.view(torch.uint8) & CODES) == CODES).any()):
            refuse(module, "values that are not finite in weight", "numbers")
        part = Float8(values=values[:, :ROWS], scales=scales, group=weight.group)
        if (largest := float(part.dense().abs().max())) > LARGEST_WEIGHT:
            refuse(module, f"weights up to {largest:.3g}", f"at most {LARGEST_WEIGHT:g}")
