"""Qwen3: Llama with q and k normed per head, and Qwen2's choice of windows."""

from engine.models.fields import Config, flag
from engine.models.qwen2 import MAX_POSITION, qwen_windows
from engine.models.traits import Traits


def traits(config: Config) -> Traits:
    bias = flag(config, "attention_bias")
    return Traits(
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        windows=qwen_windows(config),
        head_dim=128,
        max_position=MAX_POSITION,
    )
