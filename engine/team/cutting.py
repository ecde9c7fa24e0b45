"""Takes a member's part out of a weight as it was unpacked: dense, of 4 bits, or of a byte.

By outputs any part can be taken. By inputs a group of a quantised weight may have to be divided:
its parts keep its scale. Where inputs are in an order of their own and which the member has is not
free (the heads that o_proj reads), each group's inputs among the member's are filled up to whole
groups of less rows with inputs of weight zero; ``Regrouped`` says which input each row reads.
"""

import math
from dataclasses import dataclass, replace
from typing import overload

import torch

from engine.errors import CheckpointInvalid
from engine.placement import round_up
from engine.quant.bytewise import Float8
from engine.quant.formats import Quantised
from engine.quant.packings import Narrow

LEAST = 32  # rows of a group
WHOLE = 256  # rows of which the kernels like a multiple

Weight = torch.Tensor | Narrow


@dataclass(frozen=True, slots=True)
class Regrouped:
    weight: Quantised  # its rows in order
    reads: torch.Tensor  # int64 [rows of weight]: the member's input of each


@overload
def by_outputs(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor: ...
@overload
def by_outputs(weight: Narrow, index: torch.Tensor) -> Narrow: ...
def by_outputs(weight: Weight, index: torch.Tensor) -> Weight:
    if isinstance(weight, torch.Tensor):
        return weight[index.to(weight.device)]
    if isinstance(weight, Float8):
        index = index.to(weight.values.device)
        values = weight.values.view(torch.uint8)[index].view(weight.values.dtype)
        return replace(weight, values=values, scales=weight.scales[index])
    index = index.to(weight.codes.device)
    return replace(
        weight,
        codes=weight.codes[:, index],
        scales=weight.scales[:, index],
        zeros=weight.zeros[:, index],
    )


def by_inputs(module: str, weight: Weight, first: int, count: int) -> Weight:
    """Consecutive inputs; of a weight with an order of its own, consecutive in that order, which
    the result no longer has. Raises CheckpointInvalid."""
    end = first + count
    if isinstance(weight, torch.Tensor):
        return weight[:, first:end].contiguous()
    if isinstance(weight, Float8):
        group = _divided(module, weight.group, weight.values.shape[1], first, count)
        scales = _repeated(weight.scales.t(), weight.group, group, first, count)
        values = weight.values.view(torch.uint8)[:, first:end].contiguous()
        return Float8(
            values=values.view(weight.values.dtype), scales=scales.t().contiguous(), group=group
        )
    group = _divided(module, weight.group, weight.codes.shape[0], first, count)
    return Quantised(
        bits=weight.bits,
        codes=weight.codes[first:end].contiguous(),
        scales=_repeated(weight.scales, weight.group, group, first, count),
        zeros=_repeated(weight.zeros, weight.group, group, first, count),
        group=group,
    )


def by_given_inputs(module: str, weight: Weight, first: int, count: int) -> Weight | Regrouped:
    """Consecutive inputs in their own order, whatever that of the groups is. Raises
    CheckpointInvalid."""
    if not isinstance(weight, Quantised) or weight.perm is None:
        return by_inputs(module, weight, first, count)
    if int(weight.zeros.max()) >= 1 << weight.bits:  # no code stands for a weight of zero
        return by_inputs(module, weight.dense(), first, count)
    return _regrouped(weight, first, count)


def _regrouped(weight: Quantised, first: int, count: int) -> Regrouped:
    assert weight.perm is not None
    device = weight.codes.device
    least = LEAST if weight.group % 64 else 64
    rows, sources = list[torch.Tensor](), list[int]()
    for group in range(weight.scales.shape[0]):
        span = torch.arange(
            group * weight.group,
            min((group + 1) * weight.group, len(weight.codes)),
            device=device,
        )
        mine = span[(weight.perm[span] >= first) & (weight.perm[span] < first + count)]
        filled = round_up(len(mine), least)
        pad = torch.full((filled - len(mine),), -1, dtype=torch.int64, device=device)
        rows.append(torch.cat([mine, pad]))
        sources += [group] * (filled // least)
    missing = (round_up(sum(map(len, rows)), WHOLE) - sum(map(len, rows))) // least
    rows.append(torch.full((missing * least,), -1, dtype=torch.int64, device=device))
    sources += [0] * missing
    row, source = torch.cat(rows), torch.tensor(sources, device=device)
    used = row >= 0
    zeros = weight.zeros[source]
    codes = torch.where(
        used[:, None],
        weight.codes[row.clamp(min=0)],
        zeros.repeat_interleave(least, dim=0).to(torch.uint8),
    )
    reads = torch.where(used, weight.perm[row.clamp(min=0)] - first, 0)
    scales = weight.scales[source]
    regrouped = Quantised(bits=weight.bits, codes=codes, scales=scales, zeros=zeros, group=least)
    return Regrouped(regrouped, reads)


def _divided(module: str, group: int, rows: int, first: int, count: int) -> int:
    """Rows of the groups of a part."""
    if group >= rows:
        return count
    found = math.gcd(group, first, count)
    if found % LEAST:
        raise CheckpointInvalid(
            f"{module}: tensor parallel parts of {count} inputs cut its groups of {group} rows "
            f"into groups of {found}; the kernels take multiples of {LEAST}"
        )
    return found


def _repeated(
    facts: torch.Tensor, group: int, divided: int, first: int, count: int
) -> torch.Tensor:
    """Rows of [G, N], one for each group of the part."""
    starts = torch.arange(first, first + count, min(divided, count), device=facts.device)
    return facts[(starts // group).clamp_(max=len(facts) - 1)].contiguous()
