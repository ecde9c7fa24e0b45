"""The language model inside a checkpoint that also sees: its config, and its tensors' names.

A LLaVA checkpoint keeps the language model's settings in ``text_config``, where older ones leave
out what was a default, and its tensors under a prefix that changed over the years. Whoever reads
it through here finds a plain language model, and beside it what belongs to the tower.
"""

import re
from collections.abc import Mapping
from typing import Any

SEEING = "LlavaForConditionalGeneration"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# What transformers takes a Llama to be where its config does not say.
LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "eos_token_id": 2,
}  # fmt: skip
OUTSIDE = ("quantization_config", "compression_config", "dtype", "torch_dtype", "_name_or_path")
_NAMES = (
    (re.compile(r"^(model\.)?language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^(model\.)?language_model\.(model\.)?"), "model."),
    (re.compile(r"^(model\.)?vision_tower\.(vision_model\.)?"), "vision_tower."),
    (re.compile(r"^(model\.)?multi_modal_projector\."), "multi_modal_projector."),
)


def architecture(config: Mapping[str, Any]) -> str | None:
    """The first that is named; where the key is missing, the one of the model's type."""
    named = config.get("architectures")
    if named is None:
        return ARCHITECTURES.get(str(config.get("model_type")))
    return str(named[0]) if isinstance(named, list) and named else None


def sees(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has more than a language model, and is one of those read here."""
    return config.get("architectures") == [SEEING]


def language_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own config; of a plain one, the same."""
    text = config.get("text_config")
    if not sees(config) or not isinstance(text, dict):
        return dict(config)
    kind = str(text.get("model_type", "llama"))
    outside = {key: config[key] for key in OUTSIDE if config.get(key) is not None}
    return {
        **(LLAMA if kind == "llama" else {}),
        **text,
        **outside,
        "architectures": [ARCHITECTURES.get(kind, f"{SEEING} over {kind!r}")],
        "tie_word_embeddings": bool(
            config.get("tie_word_embeddings") or text.get("tie_word_embeddings")
        ),
    }


def plain_name(tensor: str) -> str:
    """A tensor's name as a plain language model has it, or as this program calls the tower's."""
    for pattern, plain in _NAMES:
        if pattern.match(tensor):
            return pattern.sub(plain, tensor)
    return tensor
