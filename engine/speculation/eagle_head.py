"""The EAGLE-3 head: one decoder layer that goes on from what the target thought.

For the token at position q + 1 it reads the token's embedding and one vector: at first what
``fuse`` makes of the target's features at position q, later what it made itself at q - 1. What it
makes says the token at q + 2. Letters as in ``engine.batch``; H is the head's hidden size, HT the
target's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.batch import StepInputs
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.layers.attention import Attention
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear, parts
from engine.layers.rotary import rotary_table
from engine.loading import HEAD, Placement, Weights
from engine.models.spec import ModelSpec
from engine.page_memory import LayerPages
from engine.placement import SITES
from engine.speculation.eagle_checkpoint import (
    FROM_TARGET,
    TO_TARGET,
    HeadSpec,
    names_of,
    to_target,
)
from kernels.planes import total
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class Target:
    """What a head takes from the model it drafts for."""

    spec: ModelSpec
    embedding: Callable[[], Embedding]  # for a head without one
    rows: Callable[[], torch.Tensor]  # [V, HT] of its own head, for a head without
    positions: int  # tokens a sequence may have


class EagleHead:
    """Raises CheckpointInvalid for a checkpoint that is no head of this target."""

    def __init__(self, checkpoint: Checkpoint, target: Target, place: Placement) -> None:
        self.spec = HeadSpec.read(checkpoint.config, target.spec)
        spec, names = self.spec.layer, names_of(checkpoint)
        hidden, inner, kv = spec.hidden_size, spec.intermediate_size, spec.kv_size
        weights, layer = Weights(checkpoint, spec, place), names["layer"]

        def linear(block: str, site: str, inputs: int, *outputs: int, bias: bool) -> Linear:
            sizes = dict(zip(SITES[site], outputs, strict=True))
            return weights.linear(f"{layer}.{block}", inputs, sizes, bias=bias)

        prefix, _, fc = names["fc"].rpartition(".")
        thoughts = len(self.spec.layers) * self.spec.target_hidden
        self._fc = weights.linear(prefix, thoughts, {fc: hidden}, bias=False)
        query, biases = spec.query_size, spec.qkv_bias
        self._qkv = linear("self_attn", "qkv", 2 * hidden, query, kv, kv, bias=biases)
        self._o = linear("self_attn", "o", query, hidden, bias=spec.o_bias)
        self._gate_up = linear("mlp", "gate_up", hidden, inner, inner, bias=spec.mlp_bias)
        self._down = linear("mlp", "down", inner, hidden, bias=spec.mlp_bias)
        self._before_token = weights.norm(f"{layer}.input_layernorm")
        self._before_hidden = weights.norm(f"{layer}.hidden_norm")
        self._before_mlp = weights.norm(f"{layer}.post_attention_layernorm")
        self._norm = weights.norm(names["norm"])
        self._embedding = _embedding(checkpoint, weights, names["embed_tokens"], target)
        if any(name.startswith(f"{HEAD}.") for name in checkpoint.tensors):
            self._head = weights.head(self._embedding)
        else:
            self._head = weights.head_over(_rows(checkpoint, spec, target))
        weights.pass_over((TO_TARGET, FROM_TARGET))
        weights.finish()
        tokens = to_target(checkpoint, spec.vocab_size, target.spec.vocab_size)
        self._tokens = None if tokens is None else tokens.to(place.device)
        table = rotary_table(spec.rope, spec.head_dim, target.positions).to(place.device)
        self._attention = Attention(spec=spec, cos_sin=table, dtype=place.dtype)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """[T, layers * HT] to [T, H]."""
        return self._fc(features.to(self._fc.dtype))

    def __call__(
        self, tokens: torch.Tensor, hidden: torch.Tensor, pages: LayerPages, inputs: StepInputs
    ) -> torch.Tensor:
        """[T] and [T, H] to [T, H], what comes next in the place of ``hidden``. Positions are the
        vectors'; tokens are those after them."""
        eps = self.spec.layer.rms_eps
        normed = rms_norm(hidden, self._before_hidden, eps)
        residual = normed.clone() if self.spec.normed_residual else hidden.clone()
        embedded = rms_norm(self._embedding(tokens), self._before_token, eps)
        x = torch.cat([embedded, normed], 1)
        x = self._attention(parts(self._qkv, x), pages, inputs)
        x = rms_norm(parts(self._o, x), self._before_mlp, eps, residual=residual)
        x = silu_mul(parts(self._gate_up, x), dtype=x.dtype)
        return residual + total(parts(self._down, x)).to(residual.dtype)

    def say(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, H] to [R] the target's most likely tokens."""
        logits = self._head(rms_norm(hidden, self._norm, self.spec.layer.rms_eps))
        said = logits.argmax(1)
        return said if self._tokens is None else self._tokens[said]


def _embedding(checkpoint: Checkpoint, weights: Weights, name: str, target: Target) -> Embedding:
    """Its own, or the target's."""
    hidden = weights.spec.hidden_size
    if f"{name}.weight" in checkpoint.tensors:
        table = weights.plain(f"{name}.weight", (target.spec.vocab_size, hidden))
        return Embedding(table.to(weights.place.device, weights.place.dtype))
    if hidden != target.spec.hidden_size:
        raise CheckpointInvalid(
            f"{name}: found no tensor; expected {name}.weight "
            f"{[target.spec.vocab_size, hidden]}: the target's are {target.spec.hidden_size} wide"
        )
    return target.embedding()


def _rows(checkpoint: Checkpoint, spec: ModelSpec, target: Target) -> torch.Tensor:
    """[N, H] the target's, of the tokens that a head without any can say."""
    said, hidden = spec.vocab_size, spec.hidden_size
    if hidden != target.spec.hidden_size:
        raise CheckpointInvalid(
            f"{HEAD}: found no tensor; expected {HEAD}.weight {[said, hidden]}: the target's rows "
            f"are {target.spec.hidden_size} wide"
        )
    tokens, rows = to_target(checkpoint, said, target.spec.vocab_size), target.rows()
    return rows if tokens is None else rows[tokens.to(rows.device)]
