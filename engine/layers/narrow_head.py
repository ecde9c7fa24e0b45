"""A head in int8: half the bytes of a step's last product, for logits that are off a little.

Each row of the weight, a token's, is scaled by its own largest value. How far off that is, is said
when an engine starts: of a row's logits, as of its weights, about that share of their size.
"""

from dataclasses import dataclass

import torch

from kernels.w8_weight import W8Weight

LARGEST = 127
ROWS = 4096  # looked at together


@dataclass(frozen=True, slots=True)
class NarrowHead:
    weight: W8Weight
    error: float  # of all weights, root mean square by root mean square
    worst: float  # of a token's

    def __str__(self) -> str:
        return f"weights off by {self.error:.2%}, at most {self.worst:.2%} of a token's"

    @classmethod
    def of(cls, weight: torch.Tensor) -> "NarrowHead":
        """From [V, H] of any float type."""
        V, H = weight.shape
        values = torch.empty((V, H), dtype=torch.int8, device=weight.device)
        scales = torch.empty((1, V), dtype=torch.float32, device=weight.device)
        lost, whole, worst = 0.0, 0.0, 0.0
        for first in range(0, V, ROWS):
            rows = slice(first, min(first + ROWS, V))
            part = weight[rows].float()
            scale = (part.abs().amax(1) / LARGEST).clamp_(min=1e-30)
            scales[0, rows] = scale
            values[rows] = (part / scale[:, None]).round_().to(torch.int8)
            off = (
                (values[rows].float() * scale[:, None] - part).square().sum(1, dtype=torch.float64)
            )
            size = part.square().sum(1, dtype=torch.float64)
            lost, whole = lost + float(off.sum()), whole + float(size.sum())
            worst = max(worst, float((off / size.clamp_(min=1e-30)).max()))
        error = (lost / whole) ** 0.5 if whole else 0.0
        return cls(W8Weight(values=values, scales=scales, group=H), error, worst**0.5)


def _squares(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().sum(1, dtype=torch.float64)
