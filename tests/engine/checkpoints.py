"""Small random checkpoints in every layout we read, with the dense weights they stand for.

Packing is written here from the formats' definitions, one code at a time, and shares nothing
with the loader it tests.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """How the linear layers of a checkpoint are stored."""

    method: str = "dense"  # or "gptq", "awq", "compressed-tensors"
    group: int = 32
    symmetric: bool = False
    zeros: str = "v1"
    act_order: bool = False
    dtype: torch.dtype = torch.float16  # of scales
    bits: int = 4

    def __str__(self) -> str:
        return "-".join(
            str(part)
            for part in (
                self.method,
                self.group,
                "sym" if self.symmetric else "asym",
                self.zeros,
                *(["act"] if self.act_order else []),
                str(self.dtype).removeprefix("torch."),
                *([f"{self.bits}bit"] if self.bits != 4 else []),
            )
        )

    @property
    def config(self) -> dict[str, Any] | None:
        if self.method == "dense":
            return None
        if self.method == "compressed-tensors":
            return self._compressed_config
        facts = {"quant_method": self.method, "bits": self.bits, "group_size": self.group}
        if self.method == "awq":
            return facts | {"zero_point": not self.symmetric, "version": "gemm"}
        name = "gptq" if self.zeros == "v1" else "gptq_v2"
        return facts | {
            "sym": self.symmetric,
            "desc_act": self.act_order,
            "checkpoint_format": name,
        }

    @property
    def _compressed_config(self) -> dict[str, Any]:
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "channel" if self.group == -1 else "group",
            "group_size": None if self.group == -1 else self.group,
            "actorder": "group" if self.act_order else None,
        }
        return {
            "quant_method": self.method,
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
        }


def pack_words(
    codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8)), bits: int = 4
) -> torch.Tensor:
    """int32 [R, C bits/32]: field i of a word is element order[i] of those in it."""
    rows, columns = codes.shape
    count = 32 // bits
    words = torch.zeros((rows, columns // count), dtype=torch.int64)
    for i, element in enumerate(order[:count]):
        words |= codes.long()[:, element::count] << (bits * i)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def quantised(
    K: int, N: int, layout: Layout, random: torch.Generator
) -> tuple[Tensors, torch.Tensor]:
    """The tensors of one module without its name, and its dense float32 weight [N, K]."""
    group = K if layout.group == -1 else layout.group
    G = -(-K // group)
    half = 2 ** (layout.bits - 1)
    codes = torch.randint(0, 2 * half, (K, N), generator=random)
    zeros = torch.randint(half - 2, half + 2, (G, N), generator=random)
    if layout.symmetric:
        zeros = torch.full((G, N), half)
    scales = ((torch.rand(G, N, generator=random) + 0.5) * 2.4 / half / K**0.5).to(layout.dtype)
    g_idx = torch.arange(K) // group
    if layout.act_order:
        g_idx = g_idx[torch.randperm(K, generator=random)]
    dense = ((codes - zeros[g_idx]).float() * scales.float()[g_idx]).t().contiguous()
    if layout.method == "awq":
        assert not layout.act_order
        return {
            "qweight": pack_words(codes, AWQ_ORDER),
            "qzeros": pack_words(zeros, AWQ_ORDER),
            "scales": scales,
        }, dense
    if layout.method == "compressed-tensors":
        return _compressed(codes, zeros, scales, g_idx, layout), dense
    stored = zeros - 1 if layout.zeros == "v1" else zeros
    return {
        "qweight": pack_words(codes.t(), bits=layout.bits).t().contiguous(),
        "qzeros": pack_words(stored, bits=layout.bits),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }, dense


def _compressed(
    codes: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor,
    layout: Layout,
) -> Tensors:
    tensors = {
        "weight_packed": pack_words(codes.t(), bits=layout.bits),
        "weight_scale": scales.t().contiguous(),
        "weight_shape": torch.tensor(codes.t().shape),
    }
    if not layout.symmetric:
        tensors["weight_zero_point"] = pack_words(zeros, bits=layout.bits).t().contiguous()
    if layout.act_order:
        tensors["weight_g_idx"] = g_idx.to(torch.int32)
    return tensors


@dataclass(frozen=True)
class Shape:
    hidden: int = 64
    inner: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 96
    positions: int = 512
    tied: bool = False
    attention_bias: bool = False  # on all four
    qkv_bias: bool = False
    qk_norm: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "attention_bias": self.attention_bias,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        } | self.extra

    def biased(self) -> tuple[str, ...]:
        """Modules within a layer that have a bias."""
        heads = tuple(f"self_attn.{name}_proj" for name in "qkv")
        if self.attention_bias:
            return (*heads, "self_attn.o_proj")
        return heads if self.qkv_bias else ()

    def linears(self) -> dict[str, tuple[int, int]]:
        """Module within a layer -> (inputs, outputs)."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (self.hidden, queries),
            "self_attn.k_proj": (self.hidden, keys),
            "self_attn.v_proj": (self.hidden, keys),
            "self_attn.o_proj": (queries, self.hidden),
            "mlp.gate_proj": (self.hidden, self.inner),
            "mlp.up_proj": (self.hidden, self.inner),
            "mlp.down_proj": (self.inner, self.hidden),
        }


@dataclass(frozen=True)
class Written:
    """A checkpoint on disk and the dense state dict it stands for."""

    path: Path
    shape: Shape
    dense: Tensors
    stored: Tensors


def write_checkpoint(
    path: Path, shape: Shape | None = None, layout: Layout | None = None, *, seed: int = 0
) -> Written:
    shape, layout = shape or Shape(), layout or Layout()
    random = torch.Generator().manual_seed(seed)
    dense = _outer_tensors(shape, random)
    stored = dict(dense)
    for layer in range(shape.layers):
        for module, (K, N) in shape.linears().items():
            name = f"model.layers.{layer}.{module}"
            if layout.method == "dense":
                weight = torch.randn(N, K, generator=random) * K**-0.5
                dense[f"{name}.weight"] = stored[f"{name}.weight"] = weight
            else:
                parts, dense[f"{name}.weight"] = quantised(K, N, layout, random)
                stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
            if module in shape.biased():
                bias = torch.randn(N, generator=random) * 0.1
                dense[f"{name}.bias"] = stored[f"{name}.bias"] = bias
    config = shape.config | ({"quantization_config": layout.config} if layout.config else {})
    save(path, stored, config)
    return Written(path, shape, dense, stored)


def save(path: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))


def _outer_tensors(shape: Shape, random: torch.Generator) -> Tensors:
    def near_one(size: int = shape.hidden) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=random)

    tensors = {
        "model.embed_tokens.weight": torch.randn(shape.vocab, shape.hidden, generator=random),
        "model.norm.weight": near_one(),
    }
    if not shape.tied:
        tensors["lm_head.weight"] = torch.randn(shape.vocab, shape.hidden, generator=random) * 0.2
    for layer in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = near_one()
        for norm in ("q_norm", "k_norm") if shape.qk_norm else ():
            tensors[f"model.layers.{layer}.self_attn.{norm}.weight"] = near_one(shape.head_dim)
    return tensors
