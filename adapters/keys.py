"""Which weight a tensor name of a PEFT file means.

One spelling is canonical, ``model.layers.3.self_attn.q_proj`` plus a part of it. Known others are
mapped onto it: with or without ``base_model.model.``, inside the wrappers of multimodal models and
of trainers (``language_model.``, ``_orig_mod.``), with ``.base_layer.`` left by a quantised
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
EMBEDDING, HEAD = "embed_tokens", "lm_head"
OUTSIDE = -1  # the layer of what is in no layer
OUTER = {EMBEDDING: f"model.{EMBEDDING}", HEAD: HEAD}

# What may stand before ``layers`` and means nothing.
WRAPPERS = frozenset({"base_model", "model", "language_model", "module"})
MAX_WRAPPERS = 8
# What trainers put around any module, not only around the whole model.
INNER_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
TOWERS = frozenset({"vision_tower", "multi_modal_projector", "visual"})


class Part(StrEnum):
    """What a tensor is to its module."""

    A = "lora_A"
    B = "lora_B"
    LORA_BIAS = "lora_B.bias"  # added to the output, scaled like it
    MAGNITUDE = "lora_magnitude_vector"  # DoRA: the norms of the adapted weight's rows
    BIAS = "bias"  # replaces the base's
    WEIGHT = "weight"  # replaces the base's, whole (modules_to_save)
    BASE_WEIGHT = "base_layer.weight"  # a copy of the base's, saved beside LoRA on it
    TOKENS = "trainable_tokens_delta"  # whole rows that replace the base's


class Foreign(StrEnum):
    """What an unsupported tensor is; the value is the sentence of the refusal."""

    SAVED = (
        "whole weights of linear layers and norms are not supported (of embed_tokens and lm_head"
        " they are)"
    )
    TOWER = (
        "adapters of the tower for images are not supported: train with target_modules that name"
        " modules of the language model alone"
    )
    NOT_LORA = "tensors of another method than LoRA"
    UNKNOWN = "tensors that match no module of the base"


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One module an adapter can touch."""

    layer: int  # OUTSIDE for the embedding and the head
    module: str

    @property
    def outer(self) -> bool:
        return self.layer == OUTSIDE

    @property
    def name(self) -> str:
        if self.outer:
            return OUTER[self.module]
        return f"model.layers.{self.layer}.{PARENTS[self.module]}.{self.module}"


@dataclass(frozen=True, slots=True)
class LoraKey:
    site: Site
    part: Part


_LINEAR = {
    ("lora_A", "weight"): Part.A,
    ("lora_B", "weight"): Part.B,
    ("lora_B", "bias"): Part.LORA_BIAS,
    ("lora_magnitude_vector",): Part.MAGNITUDE,
    ("lora_magnitude_vector", "weight"): Part.MAGNITUDE,
    ("bias",): Part.BIAS,
    ("base_layer", "bias"): Part.BIAS,
}
_WHOLE = {
    ("weight",): Part.WEIGHT,
    ("modules_to_save", "weight"): Part.WEIGHT,
    ("base_layer", "weight"): Part.BASE_WEIGHT,
    ("original_module", "weight"): Part.BASE_WEIGHT,
    ("token_adapter", "base_layer", "weight"): Part.BASE_WEIGHT,
    ("token_adapter", "trainable_tokens_delta"): Part.TOKENS,
}
_EMBEDDING = {
    ("lora_embedding_A",): Part.A,
    ("lora_embedding_B",): Part.B,
    ("lora_magnitude_vector",): Part.MAGNITUDE,
    ("lora_magnitude_vector", "weight"): Part.MAGNITUDE,
} | _WHOLE
_OTHER_METHODS = ("ia3_", "hada_", "lokr_", "oft_", "vera_", "prompt_", "vblora_", "randlora_")


def parse_key(name: str) -> LoraKey | Foreign:
    words = [word for word in name.split(".") if word not in INNER_WRAPPERS]
    site, rest = _site(_unwrapped(words))
    if site is None:
        return _foreign(words)
    part = _parts(site).get(_plain(rest))
    return _foreign(words) if part is None else LoraKey(site, part)


def trained_name(name: str, site: Site) -> str:
    """Of the module, in the model that was trained; ``name`` is one of its tensors'."""
    words = [word for word in name.split(".") if word not in INNER_WRAPPERS]
    end = len(words) - words[::-1].index(site.module)
    start = 2 if words[:2] == ["base_model", "model"] else 0
    return ".".join(words[start:end])


def _parts(site: Site) -> dict[tuple[str, ...], Part]:
    if site.module == EMBEDDING:
        return _EMBEDDING
    return _LINEAR | _WHOLE if site.module == HEAD else _LINEAR


def _unwrapped(words: list[str]) -> list[str]:
    for index, word in enumerate(words[: MAX_WRAPPERS + 1]):
        if word not in WRAPPERS:
            return words[index:]
    return []


def _site(words: list[str]) -> tuple[Site | None, list[str]]:
    """The module at the front of a name without its wrappers, and what follows it."""
    if words[:1] in ([EMBEDDING], [HEAD]):
        return Site(OUTSIDE, words[0]), words[1:]
    if len(words) < 5 or words[0] != "layers":
        return None, words
    number, parent, module = words[1:4]
    if PARENTS.get(module) != parent or not (number.isascii() and number.isdigit()):
        return None, words
    if len(number) > 4 or (number[0] == "0" and number != "0"):
        return None, words
    return Site(int(number), module), words[4:]


def _plain(rest: list[str]) -> tuple[str, ...]:
    """Without the adapter name ``default``, and without ``base_layer`` before a LoRA tensor."""
    if len(rest) > 1 and "default" in rest:
        at = rest.index("default")
        rest = rest[:at] + rest[at + 1 :]
    if len(rest) > 1 and rest[0] == "base_layer" and rest[1].startswith("lora_"):
        rest = rest[1:]
    return tuple(rest)


def _foreign(words: list[str]) -> Foreign:
    if not TOWERS.isdisjoint(words):
        return Foreign.TOWER
    if any(word.startswith(_OTHER_METHODS) for word in words):
        return Foreign.NOT_LORA
    lora = any(word.startswith("lora_") for word in words)
    return Foreign.SAVED if words[-1] == "weight" and not lora else Foreign.UNKNOWN
