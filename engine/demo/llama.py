"""A Llama forward pass in plain PyTorch, small enough to quantise and score the demo model.

Not the serving model: whole sequences, no cache, float32. Its one peculiarity is the hook:
``before(names, x)`` runs ahead of every group of projections that share an input and may
replace their weights, which is how quantisation walks through the model in a single pass.

Letters: B sequences, T tokens each, H hidden, D head dimension.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch.nn import functional

Weights = MutableMapping[str, torch.Tensor]
Before = Callable[[list[str], torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float

    @staticmethod
    def of(config: Mapping[str, object]) -> "Shape":
        """From the content of config.json."""

        def number(key: str) -> float:
            value = config[key]
            assert isinstance(value, int | float)
            return value

        return Shape(
            layers=int(number("num_hidden_layers")),
            heads=int(number("num_attention_heads")),
            kv_heads=int(number("num_key_value_heads")),
            head_dim=int(number("head_dim")),
            eps=number("rms_norm_eps"),
            rope_theta=number("rope_theta"),
        )


def _no_hook(names: list[str], x: torch.Tensor) -> None:
    return None


class Llama:
    """Weights under their Hugging Face names, and the pass over them."""

    def __init__(self, shape: Shape, weights: Weights) -> None:
        self.shape, self.weights = shape, weights

    def hidden(
        self,
        tokens: torch.Tensor,
        *,
        before: Before = _no_hook,
        after_layer: Callable[[int], None] = lambda layer: None,
    ) -> torch.Tensor:
        """tokens int64 [B, T] -> final normed hidden states [B, T, H]."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        rope = self._rope_table(tokens.shape[1])
        for layer in range(self.shape.layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(f"{prefix}.self_attn", self._norm(prefix, x), rope, before)
            y = self.rms(x, f"{prefix}.post_attention_layernorm.weight")
            x = x + self._mlp(f"{prefix}.mlp", y, before)
            after_layer(layer)
        return self.rms(x, "model.norm.weight")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Tied head: [..., H] -> [..., V]."""
        return functional.linear(hidden, self.weights["model.embed_tokens.weight"])

    def _norm(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        return self.rms(x, f"{prefix}.input_layernorm.weight")

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[name], self.shape.eps)

    def _project(
        self, prefix: str, modules: tuple[str, ...], x: torch.Tensor, before: Before
    ) -> list[torch.Tensor]:
        names = [f"{prefix}.{module}.weight" for module in modules]
        before(names, x)
        return [functional.linear(x, self.weights[name]) for name in names]

    def _attention(
        self, prefix: str, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], before: Before
    ) -> torch.Tensor:
        B, T, _ = x.shape
        projected = self._project(prefix, ("q_proj", "k_proj", "v_proj"), x, before)
        q, k, v = (p.view(B, T, -1, self.shape.head_dim).transpose(1, 2) for p in projected)
        mixed = functional.scaled_dot_product_attention(
            rotate(q, rope), rotate(k, rope), v, is_causal=True, enable_gqa=True
        )  # [B, heads, T, D]
        (out,) = self._project(prefix, ("o_proj",), mixed.transpose(1, 2).reshape(B, T, -1), before)
        return out

    def _mlp(self, prefix: str, x: torch.Tensor, before: Before) -> torch.Tensor:
        gate, up = self._project(prefix, ("gate_proj", "up_proj"), x, before)
        (out,) = self._project(prefix, ("down_proj",), functional.silu(gate) * up, before)
        return out

    def _rope_table(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.shape.head_dim // 2
        speed = self.shape.rope_theta ** (-torch.arange(half).double() / half)
        angle = torch.outer(torch.arange(length).double(), speed)  # [T, D/2]
        return angle.cos().float(), angle.sin().float()


def rotate(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Half-split rotary embedding of [B, heads, T, D]."""
    cos, sin = rope
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
