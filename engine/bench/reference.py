"""The model by its definition: dequantised weights in float32, one sequence, no cache, no kernels.

Slow and large, and the oracle for what an engine computes on a GPU. One layer's weights are
dequantised at a time, so that a 70B model needs no more than its largest layer.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from adapters.keys import EMBEDDING, HEAD
from adapters.pack import Factor, PackedAdapter
from engine.checkpoint import Checkpoint
from engine.layers.narrow_head import NarrowHead
from engine.layers.rotary import rotary_table
from engine.models.spec import ModelSpec
from engine.quant.configs import read_scheme
from engine.quant.packings import packing_of
from kernels.e4m3 import from_e4m3, to_e4m3
from kernels.w8_weight import dequantize_w8

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class Reference:
    """Any family we serve, over a checkpoint's dequantised weights."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        *,
        narrow: bool = False,
        narrow_head: bool = False,
    ) -> None:
        """``narrow``: keys and values are rounded as pages of 8 bits round them, ``narrow_head``:
        the head as int8 rounds it."""
        self._narrow, self._narrow_head = narrow, narrow_head
        self.spec = ModelSpec.read(checkpoint.config, checkpoint.json("generation_config.json"))
        self._checkpoint, self._device = checkpoint, device
        config = checkpoint.config.get("quantization_config") or {}
        self._scheme = read_scheme({"config.json: quantization_config": config})

    @torch.inference_mode()
    def logits(
        self,
        sequences: Sequence[Sequence[int]],
        adapters: Sequence[PackedAdapter | None],
        *,
        active: Sequence[int] | None = None,
    ) -> list[torch.Tensor]:
        """Per sequence: [T, V] float32 logits after each token.

        Args:
            active: per sequence, the position its adapter is active from (aLoRA).
        """
        table = self._tensor("model.embed_tokens.weight")
        states = [
            self._changed(table, adapter, EMBEDDING)[torch.tensor(s, device=self._device)]
            for s, adapter in zip(sequences, adapters, strict=True)
        ]
        starts = active or [0] * len(sequences)
        for layer in range(self.spec.num_layers):
            weights = self._layer(layer)
            states = [
                self._step(x, layer, weights, adapter, start)
                for x, adapter, start in zip(states, adapters, starts, strict=True)
            ]
        head = table if self.spec.tied_head else self._tensor("lm_head.weight")
        if self._narrow_head:
            head = dequantize_w8(NarrowHead.of(head).weight, dtype=torch.float32)
        norm = self._tensor("model.norm.weight")
        return [
            self._norm(x, norm) @ self._changed(head, adapter, HEAD).t()
            for x, adapter in zip(states, adapters, strict=True)
        ]

    def _changed(
        self, weight: torch.Tensor, adapter: PackedAdapter | None, name: str
    ) -> torch.Tensor:
        """The embeddings or the head with an adapter's changes."""
        table = adapter.tables.get(name) if adapter else None
        if table is None:
            return weight
        whole = weight if table.whole is None else table.whole.to(self._device, torch.float32)
        changed = whole.clone()
        if table.rows is not None:
            ids = torch.tensor(table.ids, device=self._device)
            changed[ids] = table.rows.to(self._device, torch.float32)
        if table.low is not None and table.high is not None:
            changed += (table.low.float() @ table.high.float()).to(self._device)
        return changed

    def _layer(self, layer: int) -> dict[str, torch.Tensor]:
        prefix = f"model.layers.{layer}"
        found = {
            module: self._linear(
                f"{prefix}.{'self_attn' if module in ATTENTION else 'mlp'}.{module}"
            )
            for module in (*ATTENTION, "gate_proj", "up_proj", "down_proj")
        }
        for name in self._small_tensors():
            found[name] = self._tensor(f"{prefix}.{name}")
        return found

    def _small_tensors(self) -> list[str]:
        """A layer's norms and biases, by name within the layer."""
        spec = self.spec
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["self_attn.q_norm", "self_attn.k_norm"] if spec.qk_norm else []
        biased = [f"self_attn.{m}" for m in ATTENTION[:3]] if spec.qkv_bias else []
        biased += ["self_attn.o_proj"] if spec.o_bias else []
        biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if spec.mlp_bias else []
        return [f"{name}.weight" for name in norms] + [f"{name}.bias" for name in biased]

    def _step(
        self,
        x: torch.Tensor,
        layer: int,
        weights: Mapping[str, torch.Tensor],
        adapter: PackedAdapter | None,
        start: int = 0,
    ) -> torch.Tensor:
        def linear(module: str, inputs: torch.Tensor) -> torch.Tensor:
            block = "self_attn" if module in ATTENTION else "mlp"
            weight, bias = weights[module], weights.get(f"{block}.{module}.bias")
            y = F.linear(inputs, weight, bias)
            factor = adapter.factors.get((layer, module)) if adapter else None
            if factor is not None:
                y[start:] = self._adapted(inputs[start:], weight, bias, factor)
            return y

        h = self._norm(x, weights["input_layernorm.weight"])
        q, k, v = (self._heads(linear(m, h)) for m in ("q_proj", "k_proj", "v_proj"))
        if self.spec.qk_norm:
            q = self._norm(q, weights["self_attn.q_norm.weight"])
            k = self._norm(k, weights["self_attn.k_norm.weight"])
        q, k, seen = self._rotate(q), self._rotate(k), self._seen(len(x), layer)
        if self._narrow:
            k, v = (from_e4m3(*to_e4m3(heads), torch.float32) for heads in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        x = x + linear("o_proj", mixed.transpose(0, 1).flatten(1))
        h = self._norm(x, weights["post_attention_layernorm.weight"])
        gate, up = linear("gate_proj", h), linear("up_proj", h)
        return x + linear("down_proj", F.silu(gate) * up)

    def _adapted(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        factor: Factor,
    ) -> torch.Tensor:
        """PEFT's words: the delta is made whole, DoRA scales W + delta to its norms."""

        def put(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._device, torch.float32)

        whole = weight + put(factor.b) @ put(factor.a)
        if factor.magnitude is not None:
            whole = whole * (put(factor.magnitude) / whole.norm(dim=1))[:, None]
        y = F.linear(x, whole, bias if factor.bias is None else put(factor.bias))
        return y if factor.lora_bias is None else y + put(factor.lora_bias)

    def _seen(self, length: int, layer: int) -> torch.Tensor:
        """bool [T, T]: whether a query (row) sees a key."""
        at = torch.arange(length, device=self._device)
        behind = at[:, None] - at
        window = self.spec.windows[layer] or length
        return (behind >= 0) & (behind < window)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, self.spec.head_dim).transpose(0, 1)  # [heads, T, D]

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        table = rotary_table(self.spec.rope, self.spec.head_dim, x.shape[1]).to(self._device)
        cos, sin = table.chunk(2, dim=-1)  # [T, D / 2]
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.rms_eps)

    def _linear(self, module: str) -> torch.Tensor:
        """[N, K] float32."""
        stored = self._checkpoint.tensors
        packing = packing_of(module, stored)
        if packing is None:
            return self._tensor(f"{module}.weight")
        claim = self._scheme.claim(module)
        assert claim is not None
        parts = packing.parts(module, stored)
        tensors = {p: self._checkpoint.tensor(f"{module}.{p}").to(self._device) for p in parts}
        size = self._size(module.rpartition(".")[2])
        return packing.unpack(module, tensors, size, claim).dense()

    def _size(self, module: str) -> tuple[int, int]:
        spec = self.spec
        hidden, inner = spec.hidden_size, spec.intermediate_size
        return {
            "q_proj": (hidden, spec.query_size), "k_proj": (hidden, spec.kv_size),
            "v_proj": (hidden, spec.kv_size), "o_proj": (spec.query_size, hidden),
            "gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden),
        }[module]  # fmt: skip

    def _tensor(self, name: str) -> torch.Tensor:
        return self._checkpoint.tensor(name).to(self._device, torch.float32)
