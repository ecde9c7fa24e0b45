"""From the tensors of a checkpoint to the layers of a model, one module at a time.

What a module is follows from the tensors it has: ``weight`` is dense, ``qweight`` or
``weight_packed`` with its companions is packed. Every tensor of the checkpoint must be used, and
every module of the model must be found, in the shape the config implies; otherwise
CheckpointInvalid names the module, what was found and what was expected.

On CUDA a module stays as it is packed. On CPU, or fused with modules of another kind, it is
dequantised once, in float32, to the compute dtype; in bfloat16 a CPU keeps the codes of 4 bits as
well, for passes of few rows. A CPU's head computes in float32, as bf16 logits are too coarse
(exact ties occur), over a weight in float16 where that holds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import torch

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.layers.eight import W8, fits, fuse_bytes, pack_bytes
from engine.layers.embedding import Embedding, Head
from engine.layers.half import Half
from engine.layers.int4 import FewOrMany, Int4
from engine.layers.linear import W4, Dense, Linear, Prepacked, Reading, Wide, fuse, pack
from engine.layers.narrow_head import NarrowHead
from engine.layers.tiling import Tiled, Tiling, find_tiling
from engine.models.spec import ModelSpec
from engine.page_size import linear_size
from engine.quant.configs import read_scheme
from engine.quant.formats import Quantised
from engine.quant.packings import Narrow, Packing, method_of, packing_of
from engine.team.cutting import Regrouped, Weight, by_given_inputs, by_inputs, by_outputs
from engine.team.shard import CUT_BY_INPUTS, Shard
from kernels.w8_weight import dequantize_w8

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
# The model computes them, or a trainer kept them for itself.
TABLES = (
    ".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq", ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached", ".attn.bias", ".masked_bias", "._extra_state",
)  # fmt: skip
# Of activations and of keys and values, which are rounded here, if at all, by what they are.
SCALES = (
    ".input_scale", ".input_scale_ub", ".input_zero_point", ".output_scale",
    ".output_zero_point", ".q_scale", ".k_scale", ".v_scale", ".kv_scale", ".k_zero_point",
    ".v_zero_point",
)  # fmt: skip
IGNORED = (*TABLES, *SCALES)
CLAIMS = ("quantization_config", "compression_config")  # keys of config.json
CLAIM_FILES = ("quantize_config.json", "quant_config.json", "quantization_config.json")
GROUPS = ("g_idx", "weight_g_idx")  # of a packed module's inputs
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in what precision a model computes."""

    device: torch.device
    dtype: torch.dtype
    deterministic: bool = False
    narrow_head: bool = False  # of int8, unless the checkpoint has quantised it
    shard: Shard | None = None  # of a member of a team; None: the whole model is here


class Weights:
    """Hands out layers and remembers which tensors they took."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, place: Placement) -> None:
        self.spec, self.place = spec, place
        self.narrow_head: NarrowHead | None = None  # what became of the head, where asked for
        self.quantization = "none"  # or the method of the modules handed out so far
        self._checkpoint = checkpoint
        self._scheme = read_scheme(
            {
                **{f"config.json: {key}": checkpoint.config.get(key) or {} for key in CLAIMS},
                **{name: checkpoint.json(name) for name in CLAIM_FILES},
            }
        )
        self._used: set[str] = set()
        self._tilings: dict[tuple[tuple[int, int], torch.dtype], Tiling] = {}
        types = {place.dtype, torch.float32} if place.device.type == "cpu" else set()
        self._prepacked = {dtype for dtype in types if Prepacked.usable(dtype)}
        self._int4 = torch.bfloat16 in self._prepacked and Int4.usable()

    def linear(self, prefix: str, inputs: int, outputs: Mapping[str, int], *, bias: bool) -> Linear:
        """One Linear over the modules ``prefix.name`` side by side, each with its outputs.

        Sizes are the member's, where there is a team.
        """
        if self.place.shard is not None:
            return self._part(self.place.shard, prefix, outputs, bias)
        names = [f"{prefix}.{name}" if prefix else name for name in outputs]
        sizes = [(inputs, n) for n in outputs.values()]
        weights = [self._weight(name, size) for name, size in zip(names, sizes, strict=True)]
        biases = [self._bias(name, size[1], bias) for name, size in zip(names, sizes, strict=True)]
        whole = torch.cat([b for b in biases if b is not None]) if bias else None
        return self._build(weights, (inputs, sum(outputs.values())), whole, self.place.dtype)

    def _part(self, shard: Shard, prefix: str, outputs: Mapping[str, int], bias: bool) -> Linear:
        """A member's part of the modules of a layer."""
        layer, dtype = int(prefix.split(".")[2]), self.place.dtype
        sizes = {name: linear_size(shard.whole, name) for name in outputs}
        if "gate_proj" in outputs:
            shard.order(layer, self._groups(f"{prefix}.down_proj"))
        weights = {name: self._weight(f"{prefix}.{name}", size) for name, size in sizes.items()}
        biases = {name: self._bias(f"{prefix}.{name}", n, bias) for name, (_, n) in sizes.items()}
        if outputs.keys().isdisjoint(CUT_BY_INPUTS):
            taken = {name: shard.outputs(layer, name) for name in outputs}
            columns = [by_outputs(weights[name], taken[name]) for name in outputs]
            own = [vector[taken[name]] for name, vector in biases.items() if vector is not None]
            size = shard.whole.hidden_size, sum(outputs.values())
            return self._build(columns, size, torch.cat(own) if bias else None, dtype)
        (name,) = outputs
        inputs, count = sizes[name]
        count = inputs // shard.size
        cut = by_inputs if name == "down_proj" else by_given_inputs
        part = cut(f"{prefix}.{name}", weights[name], shard.member * count, count)
        added = biases[name] if shard.leads else None
        if not isinstance(part, Regrouped):
            return self._build([part], (count, outputs[name]), added, dtype)
        size = len(part.reads), outputs[name]
        inner = self._build([part.weight], size, added, dtype)
        return Reading(inner, part.reads.to(self.place.device), count)

    def _groups(self, module: str) -> torch.Tensor | None:
        """Of each input of a packed module, where the checkpoint says it."""
        names = (f"{module}.{part}" for part in GROUPS)
        found = next((name for name in names if name in self._checkpoint.tensors), None)
        return None if found is None else self._checkpoint.tensor(found)

    def norm(self, name: str, size: int | None = None) -> torch.Tensor:
        """float32 in every model: norms compute in it and lose nothing. Size H if not given."""
        weight = self._dense(f"{name}.weight", (size or self.spec.hidden_size,))
        return weight.to(self.place.device, torch.float32)

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor as it is stored, dense, on the CPU."""
        return self._dense(name, shape)

    def pass_over(self, prefixes: Sequence[str]) -> None:
        """Tensors whose names begin so are not needed."""
        self._used.update(
            name for name in self._checkpoint.tensors if name.startswith(tuple(prefixes))
        )

    def embedding(self) -> Embedding:
        table = self._dense(f"{EMBEDDING}.weight", (self.spec.vocab_size, self.spec.hidden_size))
        shard = self.place.shard
        first = 0 if shard is None else shard.member * shard.tokens
        table = self._tokens(table).to(self.place.device, self.place.dtype)
        return Embedding(table, first=first, vocabulary=self.spec.vocab_size)

    def head(self, embedding: Embedding) -> Head:
        shard = self.place.shard
        return Head(self._head(embedding), vocabulary=self.spec.vocab_size if shard else None)

    def head_over(self, rows: torch.Tensor) -> Head:
        """For a checkpoint that leaves its head to another model, by [V, H] of that one's rows."""
        if self.place.device.type == "cpu":
            return Head(self._head_of(rows, (rows.shape[1], len(rows)), None))
        return Head(self._tile(Wide(rows.to(self.place.device, self.place.dtype))))

    def rows(self) -> torch.Tensor:
        """[V, H], what the head says each token with, of the whole model."""
        spec = self.spec
        if spec.tied_head:
            return self._dense(f"{EMBEDDING}.weight", (spec.vocab_size, spec.hidden_size))
        weight = self._weight(HEAD, (spec.hidden_size, spec.vocab_size))
        return weight if isinstance(weight, torch.Tensor) else weight.dense()

    def _head(self, embedding: Embedding) -> Linear:
        size = (self.spec.hidden_size, self.spec.vocab_size)
        if self.spec.tied_head:
            return self._tied_head(embedding)
        weight, bias = self._weight(HEAD, size), self._bias(HEAD, size[1], False)
        weight, size = self._tokens(weight), (size[0], len(embedding.table))
        if self.place.narrow_head and isinstance(weight, torch.Tensor):
            return self._narrow_head(weight, bias)
        if self.place.device.type == "cpu" or not isinstance(weight, torch.Tensor):
            return self._head_of(weight, size, bias)
        return self._tile(Wide(weight.to(self.place.device, self.place.dtype)))

    @overload
    def _tokens(self, weight: torch.Tensor) -> torch.Tensor: ...
    @overload
    def _tokens(self, weight: Weight) -> Weight: ...
    def _tokens(self, weight: Weight) -> Weight:
        """The rows of a member's tokens."""
        shard = self.place.shard
        return weight if shard is None else by_outputs(weight, shard.vocabulary)

    def finish(self) -> None:
        """Call when the model has all its layers. Raises when a tensor was left over."""
        left = sorted(
            name
            for name in self._checkpoint.tensors.keys() - self._used
            if not name.endswith(IGNORED)
        )
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            found = self._checkpoint.tensors[left[0]]
            raise CheckpointInvalid(
                f"{left[0]}{more}: found {found}; expected no such tensor in "
                f"{self.spec.architecture}"
            )

    def _narrow_head(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        place = self.place
        self.narrow_head = found = NarrowHead.of(weight.to(place.device))
        if place.device.type == "cpu":
            size = (found.weight.rows, found.weight.columns)
            return self._head_of(dequantize_w8(found.weight, dtype=torch.float32), size, bias)
        bias = None if bias is None else bias.to(place.device, torch.float32)
        return W8([found.weight], dtype=place.dtype, bias=bias, deterministic=place.deterministic)

    def _head_of(
        self, weight: torch.Tensor | Narrow, size: tuple[int, int], bias: torch.Tensor | None
    ) -> Linear:
        if self.place.device.type != "cpu":
            return self._build([weight], size, bias, self.place.dtype)
        if isinstance(weight, torch.Tensor) and Half.usable() and Half.fits(weight):
            return self._tile(Half(weight, bias))
        return self._build([weight], size, bias, torch.float32)

    def _build(
        self,
        weights: Sequence[torch.Tensor | Narrow],
        size: tuple[int, int],
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> Linear:
        place = self.place
        bias = None if bias is None else bias.to(place.device, dtype)
        packed = [w for w in weights if isinstance(w, Quantised) and w.bits == 4]
        if place.device.type != "cpu" and len(packed) == len(weights):
            parts = [pack(weight, place.device, dtype) for weight in fuse(packed)]
            return W4(parts, size, dtype=dtype, bias=bias, deterministic=place.deterministic)
        narrow = [w for w in weights if not isinstance(w, torch.Tensor) and fits(w)]
        if place.device.type != "cpu" and len(narrow) == len(weights):
            bytewise = fuse_bytes([pack_bytes(weight, place.device) for weight in narrow])
            return W8(bytewise, dtype=dtype, bias=bias, deterministic=place.deterministic)
        codes = dtype == torch.bfloat16 and len(packed) == len(weights)
        few = self._few(packed, bias) if codes else None
        if few is not None and place.deterministic:
            return self._tile(few)
        wide = [w.float() if isinstance(w, torch.Tensor) else w.dense() for w in weights]
        dense = torch.cat([w.to(place.device) for w in wide]).to(dtype)
        many = self._tile((Prepacked if dtype in self._prepacked else Dense)(dense, bias))
        return many if few is None else FewOrMany(few, many)

    def _few(self, packed: Sequence[Quantised], bias: torch.Tensor | None) -> Int4 | None:
        """The codes as a CPU multiplies with them, where it can."""
        parts = fuse(packed) if self._int4 else []
        return Int4(parts[0], bias) if len(parts) == 1 and Int4.fits(parts[0]) else None

    def _tile(self, linear: Linear) -> Linear:
        """In deterministic mode, in tiles found by trying this shape's first weight."""
        if not self.place.deterministic:
            return linear
        key = (linear.size, linear.dtype)
        if key not in self._tilings:
            self._tilings[key] = find_tiling(linear, self.place.device)
        return Tiled(linear, self._tilings[key])

    def _weight(self, module: str, size: tuple[int, int]) -> torch.Tensor | Narrow:
        packing = packing_of(module, self._checkpoint.tensors)
        if packing is not None:
            return self._quantised(module, packing, size)
        return self._dense(f"{module}.weight", (size[1], size[0]))

    def _quantised(self, module: str, packing: Packing, size: tuple[int, int]) -> Narrow:
        claim = self._scheme.claim(module)
        if claim is None:
            raise CheckpointInvalid(
                f"{module}: found {packing.said}; expected weight, as the quantisation config "
                "exempts it"
            )
        parts = packing.parts(module, self._checkpoint.tensors)
        device = self.place.device  # a GPU unpacks a large model in seconds
        tensors = {part: self._checkpoint.tensor(f"{module}.{part}").to(device) for part in parts}
        self._used.update(f"{module}.{part}" for part in parts)
        self.quantization = method_of(tensors, size, claim)
        return packing.unpack(module, tensors, size, claim)

    def _dense(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        found = self._checkpoint.tensors.get(name)
        if found is None:
            near = [key for key in self._checkpoint.tensors if key.startswith(_module(name) + ".")]
            raise CheckpointInvalid(
                f"{_module(name)}: found {', '.join(sorted(near)) or 'no tensor'}; "
                f"expected {name} {list(shape)}"
                + (", or qweight, qzeros and scales" if len(shape) == 2 else "")
            )
        if found.shape != shape or found.dtype not in FLOATS:
            raise CheckpointInvalid(
                f"{_module(name)}: found {name} {found}; expected F16, BF16 or F32 {list(shape)}"
            )
        self._used.add(name)
        tensor = self._checkpoint.tensor(name)
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # NaN is a bound of its own
            raise CheckpointInvalid(f"{_module(name)}: found values that are not finite in {name}")
        return tensor

    def _bias(self, module: str, size: int, wanted: bool) -> torch.Tensor | None:
        """The bias, or None. Some packers write a bias of zeros where the model has none."""
        name = f"{module}.bias"
        if not wanted and name not in self._checkpoint.tensors:
            return None
        bias = self._dense(name, (size,)).float()
        if not wanted and bool(bias.any()):
            raise CheckpointInvalid(f"{module}: found a bias; expected none by the config")
        return bias if wanted else None

    def _tied_head(self, embedding: Embedding) -> Linear:
        """Over the embedding's weights; a copy only where the head computes in another type."""
        size = (self.spec.vocab_size, self.spec.hidden_size)
        packing = packing_of(HEAD, self._checkpoint.tensors)
        if packing is not None:
            raise CheckpointInvalid(
                f"{HEAD}: found {packing.said}; expected none, as tie_word_embeddings says that "
                "the embeddings are the head (false: this one is)"
            )
        stored = self._checkpoint.tensor(f"{EMBEDDING}.weight")
        name = f"{HEAD}.weight"
        if name in self._checkpoint.tensors and not torch.equal(self._dense(name, size), stored):
            raise CheckpointInvalid(
                f"{HEAD}: found a weight unlike {EMBEDDING}; expected equal ones, as "
                "tie_word_embeddings says"
            )
        stored = self._tokens(stored)
        size = (len(stored), size[1])
        if self.place.narrow_head:
            return self._narrow_head(stored, None)
        if self.place.device.type != "cpu":
            return self._tile(Wide(embedding.table))
        return self._head_of(stored, size[::-1], None)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
