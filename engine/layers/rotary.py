"""The rotation table of RoPE: ``[cos | sin]`` of every position and frequency."""

import math

import torch

from engine.models.spec import Llama3Scaling, Rope


def rotary_table(rope: Rope, head_dim: int, positions: int) -> torch.Tensor:
    """float32 [positions, head_dim]: cos of the head_dim/2 angles, then sin of them."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequency = 1.0 / (rope.theta**exponent)  # [D/2]
    if rope.scaling is not None:
        frequency = _stretch(frequency, rope.scaling)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def _stretch(frequency: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1: slow rotations divided by ``factor``, fast ones kept, a ramp in between."""
    turns = scaling.original_max_position * frequency / (2 * math.pi)  # over the old context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = ramp.clamp(0.0, 1.0)
    return frequency * (keep + (1.0 - keep) / scaling.factor)
