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

import torch

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.layers.eight import W8, fits, fuse_bytes, pack_bytes
from engine.layers.embedding import Embedding, Head
from engine.layers.half import Half
from engine.layers.int4 import FewOrMany, Int4
from engine.layers.linear import W4, Dense, Linear, Prepacked, Wide, fuse, pack
from engine.layers.narrow_head import NarrowHead
from engine.layers.tiling import Tiled, Tiling, find_tiling
from engine.models.spec import ModelSpec
from engine.quant.configs import read_scheme
from engine.quant.formats import Quantised
from engine.quant.packings import Narrow, Packing, method_of, packing_of
from kernels.w8_weight import dequantize_w8

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")  # the model computes them
SCALES = (".input_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")  # of activations
IGNORED = (*TABLES, *SCALES)
CLAIMS = ("quantization_config", "compression_config")  # keys of config.json
CLAIM_FILES = ("quantize_config.json", "quant_config.json")
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in what precision a model computes."""

    device: torch.device
    dtype: torch.dtype
    deterministic: bool = False
    narrow_head: bool = False  # of int8, unless the checkpoint has quantised it


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
        self._prepack = place.device.type == "cpu" and Prepacked.usable(place.dtype)
        self._int4 = self._prepack and place.dtype == torch.bfloat16 and Int4.usable()

    def linear(self, prefix: str, inputs: int, outputs: Mapping[str, int], *, bias: bool) -> Linear:
        """One Linear over the modules ``prefix.name`` side by side, each with its outputs."""
        names = [f"{prefix}.{name}" if prefix else name for name in outputs]
        sizes = [(inputs, n) for n in outputs.values()]
        weights = [self._weight(name, size) for name, size in zip(names, sizes, strict=True)]
        biases = [self._bias(name, size[1], bias) for name, size in zip(names, sizes, strict=True)]
        whole = torch.cat([b for b in biases if b is not None]) if bias else None
        return self._build(weights, (inputs, sum(outputs.values())), whole, self.place.dtype)

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
        return Embedding(table.to(self.place.device, self.place.dtype))

    def head(self, embedding: Embedding) -> Head:
        size = (self.spec.hidden_size, self.spec.vocab_size)
        if self.spec.tied_head:
            return Head(self._tied_head(embedding))
        weight, bias = self._weight(HEAD, size), self._bias(HEAD, size[1], False)
        if self.place.narrow_head and isinstance(weight, torch.Tensor):
            return Head(self._narrow_head(weight, bias))
        if self.place.device.type == "cpu" or not isinstance(weight, torch.Tensor):
            return Head(self._head_of(weight, size, bias))
        return Head(self._tile(Wide(weight.to(self.place.device, self.place.dtype))))

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
        few = self._few(packed, bias) if len(packed) == len(weights) else None
        if few is not None and place.deterministic:
            return self._tile(few)
        wide = [w.float() if isinstance(w, torch.Tensor) else w.dense() for w in weights]
        dense = torch.cat([w.to(place.device) for w in wide]).to(dtype)
        many = self._tile(Prepacked(dense, bias) if self._prepack else Dense(dense, bias))
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
                f"expected {name} {list(shape)}, or qweight, qzeros and scales"
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
        stored = self._checkpoint.tensor(f"{EMBEDDING}.weight")
        name = f"{HEAD}.weight"
        if name in self._checkpoint.tensors and not torch.equal(self._dense(name, size), stored):
            raise CheckpointInvalid(
                f"{HEAD}: found a weight unlike {EMBEDDING}; expected equal ones, as "
                "tie_word_embeddings says"
            )
        if self.place.narrow_head:
            return self._narrow_head(stored, None)
        if self.place.device.type != "cpu":
            return self._tile(Wide(embedding.table))
        return self._head_of(stored, size[::-1], None)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
