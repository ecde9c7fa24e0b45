"""Qwen2 and 2.5: Llama with biases on q, k and v, and a window on the upper layers if any."""

from engine.errors import CheckpointInvalid
from engine.models.fields import Config, count, flag
from engine.models.traits import Traits

FULL, SLIDING = "full_attention", "sliding_attention"
MAX_POSITION = 32768


def traits(config: Config) -> Traits:
    return Traits(qkv_bias=True, windows=qwen_windows(config), max_position=MAX_POSITION)


def qwen_windows(config: Config) -> tuple[int, ...]:
    """Per layer, from ``use_sliding_window`` and ``max_window_layers`` or ``layer_types``.

    Despite its name, ``max_window_layers`` counts the lower layers, which see everything.
    """
    window, layers = _window(config), count(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        full = count(config, "max_window_layers", 28, least=0)
        return tuple(window if layer >= full else 0 for layer in range(layers))
    known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not known or len(kinds) != layers:
        raise CheckpointInvalid(
            f"config.json: layer_types={kinds!r}; expected {layers} of {FULL!r} or {SLIDING!r}"
        )
    if SLIDING in kinds and not window:
        raise CheckpointInvalid(
            "config.json: layer_types has 'sliding_attention', but use_sliding_window is false "
            "or sliding_window null; expected a window"
        )
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def _window(config: Config) -> int:
    if not flag(config, "use_sliding_window") or config.get("sliding_window", 0) is None:
        return 0
    return count(config, "sliding_window", 4096)
