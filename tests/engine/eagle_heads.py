"""Small random EAGLE-3 heads on disk, and what they draft by definition: whole, without a cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tests.engine.checkpoints import Shape, Tensors, save

TARGET = Shape(layers=4)
FEATURES = (1, 2, 3)  # layers whose inputs are read


@dataclass(frozen=True)
class WrittenHead:
    path: Path
    config: dict[str, Any]
    tensors: Tensors  # under the names of the first layout


def write_head(
    path: Path,
    *,
    target: Shape = TARGET,
    said: int = 40,
    prefix: str = "midlayer",
    outer: str = "",
    seed: int = 0,
    rows: torch.Tensor | None = None,
    fused: int | None = None,
    embedded: bool = False,
    left_out: tuple[str, ...] = (),
    **config: Any,
) -> WrittenHead:
    """``rows``: the target's, with which it says its tokens instead of its own. ``fused``: the
    target's width, its own if not given. ``embedded``: with embeddings of its own."""
    random = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * shape[-1] ** -0.5

    def near_one() -> torch.Tensor:
        return 1 + 0.1 * torch.randn(target.hidden, generator=random)

    tensors = {
        f"midlayer.{module}.weight": some(outputs, inputs * (2 if module[-6] in "qkv" else 1))
        for module, (inputs, outputs) in target.linears().items()
    }
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{norm}.weight"] = near_one()
    tensors |= {
        "fc.weight": some(target.hidden, len(FEATURES) * (fused or target.hidden)),
        "norm.weight": near_one(),
        "lm_head.weight": some(said, target.hidden),
    }
    chosen = torch.randperm(target.vocab, generator=random)[:said].sort().values
    tensors["d2t"] = chosen - torch.arange(said)
    tensors["t2d"] = torch.zeros(target.vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    if embedded:
        tensors["embed_tokens.weight"] = some(target.vocab, target.hidden)
    if rows is not None:
        tensors["lm_head.weight"], left_out = rows[chosen], (*left_out, "lm_head.weight")
    settings = target.config | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "max_position_embeddings": 32,  # as it was trained: of no consequence
        "draft_vocab_size": said,
        "eagle_aux_hidden_state_layer_ids": list(FEATURES),
    }
    settings = {key: value for key, value in (settings | config).items() if value is not None}
    plain = ("lm_head.weight", "d2t", "t2d")
    stored = {
        name if name in plain else outer + name.replace("midlayer", prefix): tensor
        for name, tensor in tensors.items()
        if name not in left_out
    }
    save(path, stored, settings)
    return WrittenHead(path, settings, tensors)


def drafts_of(
    head: WrittenHead,
    embedding: torch.Tensor,
    known: list[int],
    features: torch.Tensor,
    count: int,
) -> list[int]:
    """``features`` [len(known) - 1, layers * H], of all tokens but the last."""
    t = head.tensors
    tokens, hidden, found = list(known[1:]), F.linear(features, t["fc.weight"]), []
    numbers = torch.arange(len(t["d2t"])) + t["d2t"]
    for _ in range(count):
        made = _layer(head, F.embedding(torch.tensor(tokens), embedding), hidden)
        logits = F.linear(_norm(made[-1], t["norm.weight"]), t["lm_head.weight"])
        found.append(int(numbers[logits.argmax()]))
        tokens.append(found[-1])
        hidden = torch.cat([hidden, made[-1:]])
    return found


def _layer(head: WrittenHead, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    t, T = {name.removeprefix("midlayer."): x for name, x in head.tensors.items()}, len(hidden)
    normed = _norm(hidden, t["hidden_norm.weight"])
    both = torch.cat([_norm(embedded, t["input_layernorm.weight"]), normed], 1)
    q, k, v = (
        F.linear(both, t[f"self_attn.{name}_proj.weight"]).view(T, -1, head.config["head_dim"])
        for name in "qkv"
    )
    half = q.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)
    angle = torch.outer(torch.arange(T), speed)[:, None]

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    q, k = turned(q), turned(k).repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
    )
    mixed = mixed.transpose(0, 1).reshape(T, -1)
    residual = normed if head.config.get("norm_before_residual") else hidden
    x = residual + F.linear(mixed, t["self_attn.o_proj.weight"])
    y = _norm(x, t["post_attention_layernorm.weight"])
    gate = F.silu(F.linear(y, t["mlp.gate_proj.weight"])) * F.linear(y, t["mlp.up_proj.weight"])
    return x + F.linear(gate, t["mlp.down_proj.weight"])


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)
