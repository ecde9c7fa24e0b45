"""What sets one family of decoders apart from another; the rest of the forward pass is shared."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Every default is Llama's."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # q and k are RMS-normed per head before they are rotated
    windows: tuple[int, ...] = ()  # per layer: tokens seen, one's own included; 0 or none: all
    head_dim: int | None = None  # where config.json gives none; None: hidden_size / heads
    max_position: int = 2048  # where config.json gives none
