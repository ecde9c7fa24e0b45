"""Llama 1, 2 and 3, SmolLM2 and their kin: the plain decoder."""

from engine.errors import CheckpointInvalid
from engine.models.fields import Config, flag
from engine.models.traits import Traits

FULL = "full_attention"


def traits(config: Config) -> Traits:
    """Raises CheckpointInvalid for layers that do not see everything."""
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or set(map(str, kinds)) != {FULL}):
        raise CheckpointInvalid(
            f"config.json: layer_types={kinds!r}; expected {FULL!r} alone: a Llama has no windows"
        )
    bias = flag(config, "attention_bias")
    return Traits(qkv_bias=bias, o_bias=bias, mlp_bias=flag(config, "mlp_bias"))
