"""What a model's weights take on a GPU, from its safetensors headers. Torch-free."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adapters.errors import AdapterInvalid
from adapters.language_part import language_config, plain_name
from adapters.tensor_file import TensorFile
from adapters.values import SERVED, Float32, as_float32
from engine.bench.floor import Precision
from engine.bench.shapes import EIGHT_BITS, Shape
from engine.errors import CheckpointInvalid
from engine.models.spec import ModelSpec
from engine.page_size import linear_size
from engine.placement import SITES, round_up

TILE_N, TILE_K = 128, 128  # a packed matrix is padded to whole tiles
HOPPER_GROUPS = (64, 128, 256)
FILLED = 64  # rows of a group that is filled up
HOPPER_K = 256  # inputs must be a multiple
CODES = ("qweight", "weight_packed")
SCALES = ("scales", "weight_scale", "weight_scale_inv")
SIGHT = ("vision_tower.", "multi_modal_projector.")
ZEROS = ("qzeros", "weight_zero_point")
MAX_HEADER_BYTES, MAX_TENSORS = 64 << 20, 1 << 20
ITEM, WIDE = 2, 4  # bytes: compute dtype, float32

Tensors = Mapping[str, tuple[int, ...]]  # name -> shape as stored


@dataclass(frozen=True, slots=True)
class StoredWeights:
    nbytes: int
    precision: Precision  # of most linears, for the floor


@dataclass(frozen=True, slots=True)
class Stored:
    """How one linear is stored."""

    bits: int  # 4, 8 or 16
    group: int = 0
    zeros: bool = False
    permuted: bool = False
    filled: int = 0  # inputs that stand for none, on the average


def of_shape(shape: Shape, fmt: str, members: int = 1) -> tuple[ModelSpec, StoredWeights]:
    """A random checkpoint of this shape, groups of 128; the part of one of so many members.

    Raises ConfigError when it cannot be cut so.
    """
    spec = ModelSpec.read(shape.config())

    def stored(module: str) -> Stored:
        if fmt == "fp16":
            return Stored(16)
        if fmt in EIGHT_BITS:
            return Stored(8, 128 if fmt == "fp8-block" else linear_size(spec, module)[0])
        return Stored(4, 128, zeros=True, permuted=fmt == "gptq-act-order")

    every = {module: stored(module) for modules in SITES.values() for module in modules}
    return spec.part(members), _total(spec, [every] * spec.num_layers, members)


def of_checkpoint(path: Path, members: int = 1) -> tuple[ModelSpec, StoredWeights]:
    """The part of the first of so many members. Raises CheckpointInvalid or ConfigError."""
    config = _config(path)
    spec, tensors = ModelSpec.read(config), dict(_tensors(path))
    claim = config.get("quantization_config")
    symmetric = isinstance(claim, dict) and claim.get("sym") is True
    layers = [
        {
            module: _stored(tensors, layer, module, linear_size(spec, module), symmetric)
            for modules in SITES.values()
            for module in modules
        }
        for layer in range(spec.num_layers)
    ]
    found = _total(spec, layers, members)
    return spec.part(members), replace(found, nbytes=found.nbytes + _tower(tensors))


def _tower(tensors: Tensors) -> int:
    """Bytes of what looks at images, if anything does."""
    shapes = (shape for name, shape in tensors.items() if name.startswith(SIGHT))
    return ITEM * sum(map(math.prod, shapes))


def with_narrow_head(spec: ModelSpec, weights: StoredWeights, members: int = 1) -> StoredWeights:
    """With the head in int8, beside the embeddings where those were the head."""
    rows = -(-spec.vocab_size // members)
    narrow = rows * (spec.hidden_size + WIDE)
    before = 0 if spec.tied_head else rows * spec.hidden_size * ITEM
    precision = replace(weights.precision, head=1 + WIDE / spec.hidden_size)
    return StoredWeights(weights.nbytes + narrow - before, precision)


def narrow_head_error(path: Path, spec: ModelSpec) -> float | None:
    """What int8 changes of a checkpoint's head, by the size of its weights, over its first rows.

    As ``layers.narrow_head`` rounds them. None where the head is quantised already. Raises
    CheckpointInvalid.
    """
    wanted = "model.embed_tokens.weight" if spec.tied_head else "lm_head.weight"
    for file in sorted(path.glob("*.safetensors")):
        with _opened(file) as opened:
            found = {plain_name(name): info for name, info in opened.tensors.items()}.get(wanted)
            if found is not None and found.dtype in SERVED:
                values = as_float32(next(iter(opened.chunks(found))), found.dtype)
                return _rounded(values[: values.size // spec.hidden_size * spec.hidden_size], spec)
    return None


def _rounded(values: Float32, spec: ModelSpec) -> float:
    rows = values.reshape(-1, spec.hidden_size)
    scales = np.maximum(np.abs(rows).max(1, keepdims=True) / 127, 1e-30)
    off = np.rint(rows / scales) * scales - rows
    return float(np.linalg.norm(off) / max(float(np.linalg.norm(rows)), 1e-30))


@contextmanager
def _opened(file: Path) -> Iterator[TensorFile]:
    try:
        with TensorFile.open(
            file,
            follow_symlinks=True,
            max_header_bytes=MAX_HEADER_BYTES,
            max_tensors=MAX_TENSORS,
        ) as opened:
            yield opened
    except AdapterInvalid as error:
        raise CheckpointInvalid(f"{file}: {error}") from error


def _config(path: Path) -> dict[str, object]:
    try:
        found = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointInvalid(f"{path}/config.json: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointInvalid(f"{path}/config.json: not a JSON object")
    return language_config(found)


def _tensors(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointInvalid(f"{path}: no safetensors file")
    for file in files:
        with _opened(file) as opened:
            yield from ((plain_name(name), info.shape) for name, info in opened.tensors.items())


def _stored(
    tensors: Tensors, layer: int, module: str, size: tuple[int, int], symmetric: bool
) -> Stored:
    block = "self_attn" if module in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    prefix = f"model.layers.{layer}.{block}.{module}"

    def part(names: tuple[str, ...]) -> tuple[int, ...] | None:
        return next((tensors[n] for n in (f"{prefix}.{p}" for p in names) if n in tensors), None)

    codes, scales = part(CODES), part(SCALES)
    if codes is None or scales is None:
        if f"{prefix}.weight" not in tensors:
            raise CheckpointInvalid(f"{prefix}: neither a weight nor codes and scales")
        if scales is None:
            return Stored(16)
        groups = max(scales[1] if len(scales) == 2 else 1, 1)
        asymmetric = part(ZEROS) is not None and not symmetric
        return Stored(8, -(-size[0] // groups), zeros=asymmetric)
    bits = math.prod(codes) * 32 // math.prod(size)
    groups = max(math.prod(scales) // size[1], 1)
    return Stored(
        bits=bits,
        group=-(-size[0] // groups),
        zeros=part(ZEROS) is not None and not symmetric,
        permuted=f"{prefix}.g_idx" in tensors,
    )


def _total(spec: ModelSpec, layers: list[dict[str, Stored]], members: int) -> StoredWeights:
    part = spec.part(members)
    linears = sum(_layer(part, _cut(spec, layer, members)) for layer in layers)
    vocabulary = (
        -(-spec.vocab_size // members) * spec.hidden_size * ITEM * (1 if spec.tied_head else 2)
    )
    norms = (2 * spec.num_layers + 1) * spec.hidden_size * WIDE
    rope = spec.max_position * spec.head_dim * WIDE
    common = layers[0]["down_proj"]
    group = 0 if common.bits == 16 else common.group
    precision = Precision(weight_bits=common.bits, group=group)
    return StoredWeights(linears + vocabulary + norms + rope, precision)


def _cut(spec: ModelSpec, stored: Mapping[str, Stored], members: int) -> Mapping[str, Stored]:
    """As a member keeps them. In groups of an order of its own, down takes whole groups, and o
    fills up those of its heads."""
    if members == 1:
        return stored
    o, down = stored["o_proj"], stored["down_proj"]
    if o.permuted:
        filled = FILLED // 2 * -(-spec.query_size // o.group)
        o = replace(o, group=FILLED, filled=filled)
    return {**stored, "o_proj": o, "down_proj": replace(down, permuted=False)}


def _layer(spec: ModelSpec, stored: Mapping[str, Stored]) -> int:
    """Modules of a site are one matrix when they are stored alike."""
    total = 0
    for modules in SITES.values():
        sizes = [linear_size(spec, module) for module in modules]
        kinds = [stored[module] for module in modules]
        inputs = sizes[0][0]
        if all(kind == kinds[0] for kind in kinds):
            total += matrix_bytes(inputs, sum(n for _, n in sizes), kinds[0])
        elif all(kind.bits == kinds[0].bits for kind in kinds):
            parts = zip(sizes, kinds, strict=True)
            total += sum(matrix_bytes(inputs, n, kind) for (_, n), kind in parts)
        else:  # modules of different kinds are fused in the compute dtype
            total += matrix_bytes(inputs, sum(n for _, n in sizes), Stored(16))
    return total


def matrix_bytes(inputs: int, outputs: int, stored: Stored) -> int:
    """Bytes of one matrix on an H200."""
    inputs += stored.filled
    if stored.bits == 16:
        return inputs * outputs * ITEM
    if stored.bits == 8:
        groups = -(-inputs // stored.group)
        per_column = inputs + groups * (WIDE + (ITEM if stored.zeros else 0))
        return outputs * per_column + (8 * inputs if stored.permuted else 0)
    columns, rows = round_up(outputs, TILE_N), _padded_rows(inputs, stored.group)
    groups = -(-inputs // stored.group)
    per_column = ITEM * (2 if stored.zeros else 1)
    hopper = inputs % HOPPER_K == 0 and columns == outputs
    if hopper and (stored.group in HOPPER_GROUPS or groups == 1):
        per_column += WIDE
    return columns * (rows // 2 + groups * per_column) + (8 * inputs if stored.permuted else 0)


def _padded_rows(inputs: int, group: int) -> int:
    """Blocks of 256 rows where that costs nothing, else of 128."""
    wide = group % 64 == 0 or group >= inputs
    return round_up(inputs, 2 * TILE_K if wide and inputs % 256 == 0 else TILE_K)
