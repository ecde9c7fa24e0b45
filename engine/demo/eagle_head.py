"""The demo's EAGLE-3 head, in the layout in which such heads are published.

It is one decoder layer. For the token at position i + 1 it reads the token's embedding and what the
target thought at position i (three of its layers, made one vector by ``fc``), and says the token at
i + 2. To draft further it reads its own last vector in the place of the target's. What it says is
said with the target's own rows, which stay as they are: there is too little to learn from to move
them well, and tokens that were never said can be drafted.

Letters as in ``teacher``; D head dimension, S turns so far.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from engine.demo.llama import rotate
from engine.demo.teacher import Batch

LAYERS = (10, 20, 29)  # of the target, whose inputs are read
_KEPT = (  # of the target's config
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "max_position_embeddings", "vocab_size",
)  # fmt: skip
_NORMS = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm")


class Head(nn.Module):
    """Parameters under their published names. Begins as the target's last layer."""

    def __init__(self, target: transformers.LlamaForCausalLM, said: torch.Tensor) -> None:
        super().__init__()
        config, last = target.config, target.model.layers[-1]
        self._heads, self._size = config.num_attention_heads, config.head_dim
        self._eps, self._theta = config.rms_norm_eps, config.rope_parameters["rope_theta"]
        table = target.model.embed_tokens.weight.detach()
        self.embeddings, self.rows = [table], [table[said]]  # lists: no parameters
        hidden = config.hidden_size
        weights = {
            "fc": torch.eye(3 * hidden, device=table.device)[2 * hidden :],
            "norm": target.model.norm.weight,
            "midlayer.self_attn.o_proj": last.self_attn.o_proj.weight,
            **dict.fromkeys(_NORMS[:2], last.input_layernorm.weight),
            _NORMS[2]: last.post_attention_layernorm.weight,
            **{f"midlayer.mlp.{n}_proj": getattr(last.mlp, f"{n}_proj").weight
               for n in ("gate", "up", "down")},
        }  # fmt: skip
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(last.self_attn, name).weight
            weights[f"midlayer.self_attn.{name}"] = torch.cat([weight / 4, weight], 1)
        self.weights = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(w.detach().float())
                for name, w in weights.items()
            }
        )

    def published(self) -> dict[str, torch.Tensor]:
        return {
            f"{name.replace('/', '.')}.weight": weight.detach().half().contiguous().cpu()
            for name, weight in self.weights.items()
        }

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        return self._linear("fc", features)

    def turn(
        self, tokens: torch.Tensor, hidden: torch.Tensor, past: list[tuple[torch.Tensor, ...]]
    ) -> torch.Tensor:
        """One pass over all positions: tokens [B, T], hidden [B, T, H] to [B, T, H].

        ``past`` has keys and values of earlier turns and gets this one's. A position that is in its
        turn S sees the target's thoughts up to S positions before it, and its own line since.
        """
        embedded = self._norm(_NORMS[0], functional.embedding(tokens, self.embeddings[0]))
        both = torch.cat([embedded, self._norm(_NORMS[1], hidden)], -1)
        rope = self._rope(tokens.shape[1], tokens.device)
        q, k, v = (
            self._linear(f"midlayer.self_attn.{n}_proj", both).view(*tokens.shape, -1, self._size)
            .transpose(1, 2) for n in "qkv"
        )  # fmt: skip
        past.append((rotate(k, rope).to(v.dtype), v))
        keys, values = (torch.cat(parts, 2) for parts in zip(*past, strict=True))
        mixed = _attend(rotate(q, rope).to(v.dtype), keys, values, len(past) - 1)
        x = hidden + self._linear("midlayer.self_attn.o_proj", mixed)
        y = self._norm(_NORMS[2], x)
        gate, up = (self._linear(f"midlayer.mlp.{name}_proj", y) for name in ("gate", "up"))
        return x + self._linear("midlayer.mlp.down_proj", functional.silu(gate) * up)

    def say(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """``rows``: of the tokens that count, in the place of all."""
        rows = self.rows[0] if rows is None else rows
        return functional.linear(self._norm("norm", hidden).to(rows.dtype), rows)

    def _weight(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self.weights[name.replace(".", "/")]
        return weight

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight(name))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), x.shape[-1:], self._weight(name), self._eps)

    def _rope(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        half = self._size // 2
        speed = self._theta ** (-torch.arange(half, device=device).double() / half)
        angle = torch.outer(torch.arange(length, device=device).double(), speed)
        return angle.cos().float(), angle.sin().float()


def save(head: Head, said: torch.Tensor, target: transformers.LlamaConfig, out: Path) -> None:
    """In float16, without embeddings and the rows it says tokens with: they are the target's."""
    out.mkdir(parents=True, exist_ok=True)
    allowed = torch.zeros(target.vocab_size, dtype=torch.bool)
    allowed[said] = True
    tensors = {
        **head.published(),
        "d2t": said - torch.arange(len(said)),  # from a token it says to the target's, a distance
        "t2d": allowed,
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: getattr(target, key) for key in _KEPT},
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rope_theta": target.rope_parameters["rope_theta"],
        "draft_vocab_size": len(said),
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def turned(head: Head, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
    """What every position [B, T - 1] makes in each turn. In a later one it reads what the position
    before it made in the turn before."""
    past: list[tuple[torch.Tensor, ...]] = []
    half = torch.autocast(batch.tokens.device.type, torch.bfloat16)
    with half:
        hidden = head.fuse(batch.features[:, :-1])
    for _ in range(depth):
        with half:
            hidden = head.turn(batch.tokens[:, 1:], hidden, past)
        yield hidden
        hidden = functional.pad(hidden[:, :-1], (0, 0, 1, 0))


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, turn: int) -> torch.Tensor:
    """[B, heads, T, D] over [B, kv heads, (turn + 1) T, D] to [B, T, H]. By plain products: for
    masked texts this short torch's own attention takes several times as long on a CPU."""
    B, heads, T, D = q.shape
    groups = q.reshape(B, keys.shape[1], -1, D)  # heads that share keys, one after another
    scores = (groups @ keys.transpose(2, 3)).view(B, heads, T, -1) * D**-0.5
    likely = scores.float().masked_fill(~_seen(T, turn, q.device), float("-inf")).softmax(-1)
    mixed = likely.to(values.dtype).view(B, keys.shape[1], -1, keys.shape[2]) @ values
    joined: torch.Tensor = mixed.view(B, heads, T, D).transpose(1, 2).flatten(2)
    return joined


def _seen(length: int, turn: int, device: torch.device) -> torch.Tensor:
    """[T, (turn + 1) T] bool: the first turn's keys up to ``turn`` positions back, and of each
    later one the single position that leads here."""
    at = torch.arange(length, device=device)
    behind = at[:, None] - at[None]
    parts = [behind >= turn, *(behind == turn - earlier for earlier in range(1, turn + 1))]
    mask = torch.cat(parts, 1)
    mask[:, -length:] |= behind == 0  # a position before its turn sees itself, not nothing
    return mask
