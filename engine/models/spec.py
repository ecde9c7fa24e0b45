"""What a checkpoint's ``config.json`` says about the model, checked and in our words.

Old and new spellings are read (``rope_theta`` and ``rope_scaling``, or ``rope_parameters``).
A setting that would change the result and is not supported is refused by name, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import CheckpointInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Stretches the slow rotations: Llama 3.1's context extension."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope: Rope
    tied_head: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str  # what the weights were saved in: float16, bfloat16 or float32
    eos_tokens: tuple[int, ...]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def kv_elements(self, tokens: int) -> int:
        """Elements that K and V of this many tokens take, over all layers."""
        return self.num_layers * 2 * self.kv_size * tokens

    @classmethod
    def read(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "ModelSpec":
        """From ``config.json`` and ``generation_config.json``. Raises CheckpointInvalid."""
        _refuse_unsupported(config)
        hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
        kv_heads = _count(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise CheckpointInvalid(
                f"config.json: num_attention_heads={heads} is not a multiple of "
                f"num_key_value_heads={kv_heads}"
            )
        return cls(
            architecture=str((config.get("architectures") or ["?"])[0]),
            vocab_size=_count(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_count(config, "intermediate_size"),
            num_layers=_count(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_count(config, "head_dim", hidden // heads),
            max_position=_count(config, "max_position_embeddings", 2048),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope(config),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float16"),
            eos_tokens=_eos(config, generation or {}),
        )


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointInvalid(f"config.json: {key}={value!r}; expected a positive integer")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointInvalid(f"config.json: hidden_act={activation!r}; expected 'silu'")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key):
            raise CheckpointInvalid(
                f"config.json: {key}={config[key]}; mixtures of experts are not supported"
            )


def _rope(config: Mapping[str, Any]) -> Rope:
    """RoPE settings, from ``rope_parameters`` or from ``rope_theta`` and ``rope_scaling``."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(settings.get("rope_theta") or config.get("rope_theta") or 10000.0)
    partial = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise CheckpointInvalid(f"config.json: partial_rotary_factor={partial}; expected 1.0")
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return Rope(theta=theta)
    if kind != "llama3":
        raise CheckpointInvalid(f"config.json: rope_type={kind!r}; expected 'default' or 'llama3'")
    try:
        scaling = Llama3Scaling(
            factor=float(settings["factor"]),
            low_freq_factor=float(settings["low_freq_factor"]),
            high_freq_factor=float(settings["high_freq_factor"]),
            original_max_position=int(settings["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointInvalid(f"config.json: rope_type 'llama3' without {error}") from error
    return Rope(theta=theta, scaling=scaling)


def _eos(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    found: list[object] = []
    for source in (generation, config):
        tokens = source.get("eos_token_id")
        found += tokens if isinstance(tokens, list) else [tokens]
    return tuple(sorted({token for token in found if isinstance(token, int)}))
