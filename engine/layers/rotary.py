"""The rotation table of RoPE: ``[cos | sin]`` of every position and frequency."""

import math

import torch

from engine.models.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling


def rotary_table(rope: Rope, head_dim: int, positions: int) -> torch.Tensor:
    """float32 [positions, head_dim]: cos of the head_dim/2 angles, then sin of them."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequency, length = 1.0 / (rope.theta**exponent), 1.0  # [D/2]
    match rope.scaling:  # DynamicScaling sets in beyond the positions we serve
        case LinearScaling(factor=factor):
            frequency = frequency / factor
        case Llama3Scaling() as scaling:
            frequency = _stretch(frequency, scaling)
        case YarnScaling() as scaling:
            frequency, length = _yarn(frequency, rope.theta, scaling), scaling.attention_factor
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return torch.cat([angle.cos(), angle.sin()], dim=1) * length


def _stretch(frequency: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1: slow rotations divided by ``factor``, fast ones kept, a ramp in between."""
    turns = scaling.original_max_position * frequency / (2 * math.pi)  # over the old context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = ramp.clamp(0.0, 1.0)
    return frequency * (keep + (1.0 - keep) / scaling.factor)


def _yarn(frequency: torch.Tensor, theta: float, scaling: YarnScaling) -> torch.Tensor:
    """YaRN: like ``_stretch``, but the ramp is over the index of a frequency, not its turns."""
    half = frequency.numel()

    def index(turns: float) -> float:
        """Where the frequency stands that turns this often over the original context."""
        wavelength = scaling.original_max_position / (2 * math.pi * turns)
        return half * math.log(wavelength) / math.log(theta)

    first, last = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    steps = torch.arange(half, dtype=torch.float32) - first
    slow = (steps / ((last - first) or 0.001)).clamp(0.0, 1.0)  # equal ends: a step
    return frequency * ((1.0 - slow) + slow / scaling.factor)
