"""Llama 1, 2 and 3, SmolLM2 and their kin: the plain decoder."""

from engine.models.fields import Config, flag
from engine.models.traits import Traits


def traits(config: Config) -> Traits:
    bias = flag(config, "attention_bias")
    return Traits(qkv_bias=bias, o_bias=bias, mlp_bias=flag(config, "mlp_bias"))
