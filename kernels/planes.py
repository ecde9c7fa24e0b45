"""A sum that is handed on as its addends: whoever reads it adds them up.

planes  [P, T, N]  float32, or of the sum's own type where P is 1; or [T, N], the sum itself
addend  [T, N]     one more, of the sum's type: what adapters add
"""

import torch


def total(planes: torch.Tensor, addend: torch.Tensor | None = None) -> torch.Tensor:
    """The sum, [T, N]: taken in float32, and in float32 unless it is one plane as it is."""
    if planes.dim() == 3:
        planes = planes[0] if planes.shape[0] == 1 else planes.float().sum(0)
    return planes if addend is None else planes.float() + addend
