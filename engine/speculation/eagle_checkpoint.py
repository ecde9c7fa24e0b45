"""An EAGLE-3 head on disk, in the layouts in which they are published.

    fc.weight                [H, layers * HT]   joins what the target thought in some of its layers
    midlayer.*, layers.0.*   one decoder layer whose q, k and v read 2 H; hidden_norm beside the
                             usual two norms
    norm.weight
    lm_head.weight [N, H]    absent where it has the target's rows of those tokens
    d2t [N]                  to a token's number among the N it can say what is to be added for its
                             number with the target; absent where it can say all
    embed_tokens.weight      absent where it has the target's

Names may begin with ``model.``. The config is one of ``LlamaForCausalLMEagle3``, or of vLLM's
speculators, whose layer's settings are nested.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.models.fields import Config, count, flag
from engine.models.registry import architecture_of
from engine.models.spec import ModelSpec

ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
NESTED = ("transformer_layer_config", "eagle_config")
LAYER_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
TO_TARGET, FROM_TARGET = "d2t", "t2d"
Names = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    layer: ModelSpec  # its one decoder layer; the vocabulary is what it can say
    target_hidden: int
    layers: tuple[int, ...]  # of the target, whose inputs it reads
    normed_residual: bool  # what is added to the layer's output is normed before

    @classmethod
    def read(cls, config: Config, target: ModelSpec) -> "HeadSpec":
        """From ``config.json``. Raises CheckpointInvalid for one that is not of this target."""
        flat = _flat(config)
        named = architecture_of(config)
        if named not in ARCHITECTURES:
            raise CheckpointInvalid(
                f"config.json: architecture {named!r} is no EAGLE-3 head; expected "
                f"{' or '.join(ARCHITECTURES)}"
            )
        for key, wanted in (("vocab_size", target.vocab_size), ("num_hidden_layers", 1)):
            if (found := count(flat, key, wanted)) != wanted:
                whose = "; the target has" if key == "vocab_size" else "; an EAGLE-3 head has"
                raise CheckpointInvalid(f"config.json: {key}={found}{whose} {wanted}")
        hidden = count(flat, "target_hidden_size", target.hidden_size)
        if hidden != target.hidden_size:
            raise CheckpointInvalid(
                f"config.json: target_hidden_size={hidden}; the target's hidden_size is "
                f"{target.hidden_size}"
            )
        said = count(flat, "draft_vocab_size", target.vocab_size)
        if said > target.vocab_size:
            raise CheckpointInvalid(
                f"config.json: draft_vocab_size={said}; expected at most vocab_size="
                f"{target.vocab_size}"
            )
        layer = ModelSpec.read({**flat, "architectures": ["LlamaForCausalLM"]})
        return cls(
            # Published heads name the length they were trained at; they go as far as their target.
            layer=replace(
                layer, vocab_size=said, tied_head=False, max_position=target.max_position
            ),
            target_hidden=hidden,
            layers=_layers(flat, target.num_layers),
            normed_residual=flag(flat, "norm_before_residual"),
        )


def names_of(checkpoint: Checkpoint) -> Names:
    """Of ``layer``, ``fc``, ``norm``, ``lm_head``, ``embed_tokens``: the names this one uses."""
    tensors = checkpoint.tensors
    layer = next(
        (
            prefix
            for prefix in ("model.midlayer", "midlayer", "model.layers.0", "layers.0")
            if any(name.startswith(f"{prefix}.") for name in tensors)
        ),
        "midlayer",
    )
    found = {"layer": layer}
    for part in ("fc", "norm", "embed_tokens"):
        found[part] = f"model.{part}" if f"model.{part}.weight" in tensors else part
    return found


def to_target(checkpoint: Checkpoint, said: int, vocabulary: int) -> torch.Tensor | None:
    """[N] int64, the target's number of every token the head can say; None where they agree."""
    info = checkpoint.tensors.get(TO_TARGET)
    if info is None:
        if said == vocabulary:
            return None
        raise CheckpointInvalid(
            f"{TO_TARGET}: found no tensor; expected I64 [{said}], as draft_vocab_size={said} is "
            f"not vocab_size={vocabulary}"
        )
    if info.shape != (said,) or info.dtype not in ("I64", "I32"):
        raise CheckpointInvalid(f"{TO_TARGET}: found {info}; expected I64 [{said}]")
    tokens = torch.arange(said) + checkpoint.tensor(TO_TARGET).long()
    if bool(((tokens < 0) | (tokens >= vocabulary)).any()):
        raise CheckpointInvalid(
            f"{TO_TARGET}: found tokens from {int(tokens.min())} to {int(tokens.max())}; expected "
            f"them within the target's vocabulary of {vocabulary}"
        )
    return tokens


def _flat(config: Config) -> dict[str, Any]:
    """Settings of the layer beside the others, which prevail."""
    found: dict[str, Any] = {}
    for key in NESTED:
        if isinstance(config.get(key), dict):
            found |= config[key]
    return found | {key: value for key, value in config.items() if value is not None}


def _layers(config: Config, layers: int) -> tuple[int, ...]:
    key = next((key for key in LAYER_KEYS if config.get(key)), LAYER_KEYS[0])
    found = config.get(key) or [2, layers // 2, layers - 3]
    whole = isinstance(found, list) and all(type(layer) is int for layer in found)
    if not whole or not all(0 <= layer < layers for layer in found):
        raise CheckpointInvalid(
            f"config.json: {key}={found!r}; expected numbers below the target's {layers} layers"
        )
    return tuple(found)
