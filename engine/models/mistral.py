"""Mistral: Llama with one sliding window for every layer, or with none (v0.2 and later)."""

from engine.errors import CheckpointInvalid
from engine.models.fields import Config, count
from engine.models.traits import Traits

WINDOW = 4096  # where config.json does not mention one; null means none
FULL, SLIDING = "full_attention", "sliding_attention"


def traits(config: Config) -> Traits:
    """Raises CheckpointInvalid for windows that alternate from layer to layer."""
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise CheckpointInvalid(
            f"config.json: layer_types={kinds!r}; expected a list of {FULL!r} or {SLIDING!r}"
        )
    if len(set(kinds)) > 1:
        raise CheckpointInvalid(
            "config.json: layer_types of several kinds; a Mistral has one window for all layers "
            "(models with alternating windows name themselves MinistralForCausalLM)"
        )
    windowed = config.get("sliding_window", WINDOW) is not None and FULL not in kinds
    window = count(config, "sliding_window", WINDOW) if windowed else 0
    return Traits(windows=(window,) * count(config, "num_hidden_layers"), max_position=131072)
