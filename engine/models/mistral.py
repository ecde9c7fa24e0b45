"""Mistral: Llama with one sliding window for every layer, or with none (v0.2 and later)."""

from engine.errors import CheckpointInvalid
from engine.models.fields import Config, count
from engine.models.traits import Traits

WINDOW = 4096  # where config.json does not mention one; null means none


def traits(config: Config) -> Traits:
    """Raises CheckpointInvalid for windows that alternate from layer to layer."""
    if len(set(config.get("layer_types") or [])) > 1:
        raise CheckpointInvalid(
            "config.json: layer_types of several kinds; a Mistral has one window for all layers "
            "(models with alternating windows name themselves MinistralForCausalLM)"
        )
    windowed = config.get("sliding_window", WINDOW) is not None
    window = count(config, "sliding_window", WINDOW) if windowed else 0
    return Traits(windows=(window,) * count(config, "num_hidden_layers"), max_position=131072)
