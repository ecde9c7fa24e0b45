"""The decoder of every family we serve, over 4-bit or dense weights.

Families differ in what their spec says (biases, norms of q and k, windows, RoPE), not in the
order of things. The same code runs on CPU and CUDA; the layers know what their weights are.
Letters as in ``engine.batch``; H is the hidden size.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch

from engine.batch import StepInputs
from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.lora import Adapted, Addends, LoraPass
from engine.layers.rotary import rotary_table
from engine.loading import Weights
from engine.models.kinds import first_of_each, kind
from engine.models.spec import ModelSpec
from engine.page_memory import LayerPages
from engine.placement import SITES
from engine.speculation.features import Features
from engine.team.group import Group
from kernels.places import NewTokens, Places, SeenKeys
from kernels.qkv_heads import HeadNorms
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul


class Layer:
    """One decoder layer: attention, then the gated MLP, each added to the residual stream."""

    def __init__(
        self, weights: Weights, number: int, cos_sin: torch.Tensor, group: Group | None = None
    ) -> None:
        spec, prefix = weights.spec, f"model.layers.{number}"
        hidden, inner, kv = spec.hidden_size, spec.intermediate_size, spec.kv_size
        outputs = {
            "qkv": ("self_attn", hidden, (spec.query_size, kv, kv), spec.qkv_bias),
            "o": ("self_attn", spec.query_size, (hidden,), spec.o_bias),
            "gate_up": ("mlp", hidden, (inner, inner), spec.mlp_bias),
            "down": ("mlp", inner, (hidden,), spec.mlp_bias),
        }

        def adapted(site: str) -> Adapted:
            block, inputs, sizes, bias = outputs[site]
            names = dict(zip(SITES[site], sizes, strict=True))
            linear = weights.linear(f"{prefix}.{block}", inputs, names, bias=bias)
            return Adapted(linear, number, site)

        self.qkv, self.o = adapted("qkv"), adapted("o")
        self.gate_up, self.down = adapted("gate_up"), adapted("down")
        self.before_attention = weights.norm(f"{prefix}.input_layernorm")
        self.before_mlp = weights.norm(f"{prefix}.post_attention_layernorm")
        self.eps, self._group = spec.rms_eps, group
        self.attention = Attention(
            spec=spec,
            cos_sin=cos_sin,
            window=spec.windows[number],
            norms=_head_norms(weights, f"{prefix}.self_attn") if spec.qk_norm else None,
            deterministic=weights.place.deterministic,
            dtype=weights.place.dtype,
        )

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        pages: LayerPages,
        inputs: StepInputs,
        lora: LoraPass | None,
    ) -> Addends:
        """x [T, H], normed, to this layer's last addition to the residual, not yet added.

        Linears give addends, which the op that reads them adds up.
        """
        qkv = self.qkv(x, lora)
        x = self.attention(qkv.planes, pages, inputs, addend=qkv.addend, chain=qkv.chain)
        o = self._total(self.o(x, lora), x.dtype)
        x = rms_norm(
            o.planes, self.before_mlp, self.eps, addend=o.addend, residual=residual, chain=o.chain
        )
        gate_up = self.gate_up(x, lora)
        x = silu_mul(gate_up.planes, addend=gate_up.addend, dtype=x.dtype, chain=gate_up.chain)
        return self._total(self.down(x, lora), x.dtype)

    @property
    def kind(self) -> object:
        """Equal for layers that launch the same kernels."""
        sites = (self.qkv, self.o, self.gate_up, self.down)
        return self.attention.window, tuple(kind(site.linear) for site in sites)

    def _total(self, addends: Addends, dtype: torch.dtype) -> Addends:
        """Over the members of a team, each of which has read a part of the inputs."""
        if self._group is None:
            return addends
        return Addends(self._group.total(addends.planes, addends.addend, dtype))


class Decoder:
    def __init__(self, weights: Weights, *, positions: int, group: Group | None = None) -> None:
        """``group``: of the team, of whose model these are a member's weights."""
        spec = weights.spec
        table = rotary_table(spec.rope, spec.head_dim, positions).to(weights.place.device)
        self.spec: ModelSpec = spec
        self._cos_sin = table
        self.deterministic = weights.place.deterministic
        self.embedding = weights.embedding()
        self.layers = [Layer(weights, number, table, group) for number in range(spec.num_layers)]
        self.norm = weights.norm("model.norm")
        self.head = weights.head(self.embedding)
        self._group = group
        if group is not None:
            self.head.join(group)

    @property
    def is_part(self) -> bool:
        """Others compute the rest."""
        return self._group is not None

    def shallow(self, layers: int) -> "Decoder":
        """So many of its layers, or one of each kind: the same kernels, less work."""
        model, kinds = copy(self), [layer.kind for layer in self.layers]
        model.layers = first_of_each(self.layers, kinds, least=layers)
        return model

    def __call__(
        self,
        inputs: StepInputs,
        pages: Sequence[LayerPages],
        lora: LoraPass | None,
        features: Features | None = None,
    ) -> torch.Tensor:
        """The last hidden state of the rows that go through the head: [R, H], normed."""
        eps = self.spec.rms_eps
        if self._cos_sin.device.type == "cpu":
            inputs = replace(inputs, places=self._places(inputs, pages[0].kv))
        residual = self._embedded(inputs.tokens)
        if lora is not None and lora.outer is not None:
            lora.outer.embed(inputs.tokens, residual, lora.segments.runs)
        for image in inputs.images:
            residual[image.first : image.first + len(image.vectors)] = image.vectors
        if inputs.changed and self._group is not None:
            self._group.share(residual)
        x = rms_norm(residual, self.layers[0].before_attention, eps)
        following = [*(layer.before_attention for layer in self.layers[1:]), self.norm]
        for number, (layer, norm) in enumerate(zip(self.layers, following, strict=True)):
            if features is not None:
                features.enter(number, residual)
            last = layer(x, residual, pages[number], inputs, lora)
            rows = inputs.head_rows if number + 1 == len(self.layers) else None
            x = rms_norm(
                last.planes,
                norm,
                eps,
                addend=last.addend,
                residual=residual,
                rows=rows,
                chain=last.chain,
            )
        return x

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T, H]. In a team the lead's tokens count: others do not know what was drawn."""
        if self._group is None:
            return self.embedding(tokens)
        return self._group.add_up(self.embedding.addend(self._group.share(tokens)))

    def _places(self, inputs: StepInputs, kv: torch.Tensor) -> Places:
        decode, seen = inputs.decode, None
        if decode is not None and decode.queries == 1 and not self.deterministic:
            seen = SeenKeys.of(kv, decode.page_table, decode.context_lens, decode.rows)
        return Places(NewTokens.of(kv, inputs.positions, inputs.slots, self._cos_sin), seen)

    def linears(self) -> list[dict[str, Linear]]:
        """Of each layer, the base's linear of each site."""
        return [
            {
                "qkv": layer.qkv.linear,
                "o": layer.o.linear,
                "gate_up": layer.gate_up.linear,
                "down": layer.down.linear,
            }
            for layer in self.layers
        ]


def _head_norms(weights: Weights, prefix: str) -> HeadNorms:
    size = weights.spec.head_dim
    q, k = (weights.norm(f"{prefix}.{name}", size) for name in ("q_norm", "k_norm"))
    return HeadNorms(q=q, k=k, eps=weights.spec.rms_eps)
