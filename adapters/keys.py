"""Which weight a tensor name of a PEFT file means.

One spelling is canonical, ``model.layers.3.self_attn.q_proj`` plus A or B. Known others are
mapped onto it: with or without ``base_model.model.``, with ``.base_layer.`` left by a quantised
wrapper, with the adapter name ``default``. Every other name is foreign, and says what it is.
"""

from dataclasses import dataclass
from enum import StrEnum

PARENTS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}


class Part(StrEnum):
    A = "lora_A"
    B = "lora_B"


class Foreign(StrEnum):
    """What an unsupported tensor is; the value is the sentence of the refusal."""

    DORA = "DoRA magnitudes are not supported"
    LORA_BIAS = "LoRA biases (lora_bias) are not supported"
    BIAS = "trained biases are not supported"
    EMBEDDING = "LoRA on embeddings is not supported"
    HEAD = "LoRA on the output head is not supported"
    TOKENS = "trainable tokens are not supported"
    SAVED = "whole weights (modules_to_save or base weights) are not supported"
    UNKNOWN = "tensors that match no module of the base"


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One linear layer an adapter can touch."""

    layer: int
    module: str

    @property
    def name(self) -> str:
        return f"model.layers.{self.layer}.{PARENTS[self.module]}.{self.module}"


@dataclass(frozen=True, slots=True)
class LoraKey:
    site: Site
    part: Part


def parse_key(name: str) -> LoraKey | Foreign:
    words = name.split(".")
    if words[:2] == ["base_model", "model"]:
        words = words[2:]
    site, rest = _site(words), words[5:]
    if site is None:
        return _foreign(name, words)
    if rest[:1] == ["base_layer"]:
        rest = rest[1:]
    if len(rest) == 3 and rest[1] == "default":
        rest = [rest[0], rest[2]]
    if len(rest) == 2 and rest[0] in (Part.A, Part.B) and rest[1] == "weight":
        return LoraKey(site, Part(rest[0]))
    return _foreign(name, words)


def _site(words: list[str]) -> Site | None:
    """``model.layers.<n>.<parent>.<module>`` at the front of a name."""
    if len(words) < 5 or words[:2] != ["model", "layers"]:
        return None
    number, parent, module = words[2:5]
    if PARENTS.get(module) != parent or not (number.isascii() and number.isdigit()):
        return None
    if len(number) > 4 or (number[0] == "0" and number != "0"):
        return None
    return Site(int(number), module)


def _foreign(name: str, words: list[str]) -> Foreign:
    if "lora_magnitude_vector" in name:
        return Foreign.DORA
    if "token_adapter" in name or "trainable_tokens" in name:
        return Foreign.TOKENS
    lora = any(word.startswith("lora_") for word in words)
    if lora and words[-1] == "bias":
        return Foreign.LORA_BIAS
    if "lora_embedding" in name or (lora and "embed_tokens" in words):
        return Foreign.EMBEDDING
    if lora and "lm_head" in words:
        return Foreign.HEAD
    if lora:
        return Foreign.UNKNOWN
    if words[-1] == "bias":
        return Foreign.BIAS
    return Foreign.SAVED if words[-1] == "weight" else Foreign.UNKNOWN
