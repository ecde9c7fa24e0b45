"""What a checkpoint's ``config.json`` says about the model, checked and in our words.

A setting that would change the result and is not supported is refused by name, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import CheckpointInvalid, ConfigError
from engine.models.fields import Config, count, flag, number
from engine.models.registry import architecture_of, read_traits
from engine.models.rope import DynamicScaling, Rope, read_rope


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
    max_position: int  # tokens a sequence may have, RoPE scaling included
    rms_eps: float
    rope: Rope
    tied_head: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]  # per layer: tokens seen, one's own included; 0: all
    dtype: str  # what the weights were saved in: float16, bfloat16 or float32
    eos_tokens: tuple[int, ...]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def part(self, members: int) -> "ModelSpec":
        """What each of so many members of a team has: heads and channels; of the vocabulary all.

        Raises ConfigError when the model cannot be cut so.
        """
        counts = {
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
        }
        for name, found in counts.items():
            if found % members:
                raise ConfigError(f"tensor_parallel_size={members} does not divide {name}={found}")
        heads = self.num_kv_heads
        if heads % members and members % heads:
            raise ConfigError(
                f"tensor_parallel_size={members} neither divides num_key_value_heads={heads} "
                "nor is a multiple of it"
            )
        return replace(
            self,
            num_heads=self.num_heads // members,
            num_kv_heads=max(1, heads // members),
            intermediate_size=self.intermediate_size // members,
        )

    @property
    def length_limit(self) -> str:
        """Why sequences are no longer than ``max_position``, for a refusal."""
        limit = f"max_position_embeddings={self.max_position}"
        if not isinstance(self.rope.scaling, DynamicScaling):
            return limit
        return (
            f"{limit}; beyond it, dynamic RoPE scaling rotates earlier keys anew with every token, "
            "which keys kept in pages cannot follow (rope_type 'yarn' or 'linear' can)"
        )

    def kv_elements(self, tokens: int) -> int:
        """Elements that K and V of this many tokens take, over all layers."""
        return self.num_layers * 2 * self.kv_size * tokens

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        *,
        stored: str = "float16",
    ) -> "ModelSpec":
        """From ``config.json`` and ``generation_config.json``. Raises CheckpointInvalid.

        ``stored``: the weights' type, for a config that does not say it.
        """
        traits = read_traits(config)
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise CheckpointInvalid(f"config.json: hidden_act={activation!r}; expected 'silu'")
        hidden, layers = count(config, "hidden_size"), count(config, "num_hidden_layers")
        heads, kv_heads = _heads(config)
        max_position = count(config, "max_position_embeddings", traits.max_position)
        rope = read_rope(config, max_position)
        return cls(
            architecture=architecture_of(config),
            vocab_size=count(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=count(config, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=count(config, "head_dim", traits.head_dim or hidden // heads),
            max_position=rope.reach(max_position),
            rms_eps=number(config, "rms_norm_eps", 1e-6),
            rope=rope,
            tied_head=flag(config, "tie_word_embeddings"),
            qkv_bias=traits.qkv_bias,
            o_bias=traits.o_bias,
            mlp_bias=traits.mlp_bias,
            qk_norm=traits.qk_norm,
            windows=traits.windows or (0,) * layers,
            dtype=_dtype(config) or stored,
            eos_tokens=_eos(config, generation or {}),
        )


def _dtype(config: Config) -> str | None:
    for key in ("dtype", "torch_dtype"):
        said = str(config.get(key)).removeprefix("torch.")
        if said in ("float16", "bfloat16", "float32"):
            return said
    return None


def _heads(config: Config) -> tuple[int, int]:
    heads = count(config, "num_attention_heads")
    kv_heads = count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointInvalid(
            f"config.json: num_attention_heads={heads} is not a multiple of "
            f"num_key_value_heads={kv_heads}"
        )
    return heads, kv_heads


def _eos(config: Config, generation: Config) -> tuple[int, ...]:
    found: list[object] = []
    for source in (generation, config):
        tokens = source.get("eos_token_id")
        found += tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    if wrong := [token for token in found if type(token) is not int]:
        raise CheckpointInvalid(f"eos_token_id={wrong[0]!r}; expected a token or a list of tokens")
    size = count(config, "vocab_size")  # a token beyond it is never drawn
    return tuple(sorted({token for token in found if isinstance(token, int) and 0 <= token < size}))
