"""A packed module with a part missing, of another shape or type is refused under its name, or means
what it meant. Nothing in between: weights that are read differently look like weights."""

import pytest
import torch

from engine.checkpoint import TensorInfo
from engine.errors import CheckpointInvalid
from engine.quant.configs import read_scheme
from engine.quant.packings import packing_of
from tests.engine.bytes_checkpoints import BYTE_LAYOUTS, byte_module
from tests.engine.checkpoints import Layout, quantised

MODULE = "model.layers.3.mlp.down_proj"
SIZE = (256, 96)  # no part is square
PACKED = [
    Layout("gptq", 32),
    Layout("gptq", 32, act_order=True, zeros="v2"),
    Layout("gptq", 64, symmetric=True, bits=8),
    Layout("awq", 32),
    Layout("awq", -1, symmetric=True),
    Layout("compressed-tensors", 32, act_order=True),
    Layout("compressed-tensors", -1, symmetric=True, bits=8),
]
BYTES = {torch.float8_e4m3fn: "F8_E4M3", torch.int8: "I8"}
TYPES = [
    torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16,
    torch.int64, torch.uint32, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def made(layout):
    random = torch.Generator().manual_seed(0)
    build = byte_module if layout in BYTE_LAYOUTS else quantised
    tensors, dense = build(*SIZE, layout, random)
    claim = read_scheme({"config.json": layout.config}).claim(MODULE)
    return tensors, dense, claim


def damaged(tensor):
    wide = tensor.float() if tensor.dtype == torch.float8_e4m3fn else tensor
    flat = wide.reshape(-1)
    shapes = [flat[0], flat[:1], flat[:0], wide[:-1], wide[..., :-1], wide[None], flat.repeat(2)]
    yield from (shape.to(tensor.dtype).contiguous() for shape in shapes)
    if tensor.ndim == 2:
        yield wide.t().contiguous().to(tensor.dtype)
    yield from (wide.to(dtype) for dtype in TYPES if dtype != tensor.dtype)
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        for value in (float("nan"), float("inf")):
            broken = flat.clone()
            broken[-1] = value
            yield broken.reshape(wide.shape)


def read(tensors, claim):
    """The dense weight, or why not: without codes a module is not a packed one."""
    stored = {f"{MODULE}.{p}": TensorInfo(BYTES.get(t.dtype, "?"), ()) for p, t in tensors.items()}
    try:
        packing = packing_of(MODULE, stored)
        if packing is None:
            return f"{MODULE}: dense"
        parts = {part: tensors[part] for part in packing.parts(MODULE, stored)}
        return packing.unpack(MODULE, parts, SIZE, claim).dense()
    except CheckpointInvalid as error:
        return str(error)


@pytest.mark.parametrize("layout", [*PACKED, *BYTE_LAYOUTS], ids=str)
def test_a_damaged_part_is_refused_by_its_module_or_means_the_same(layout):
    tensors, dense, claim = made(layout)
    assert torch.equal(read(tensors, claim), dense)
    refused = 0
    for part, tensor in tensors.items():
        others = {name: each for name, each in tensors.items() if name != part}
        for parts in (others, *(others | {part: each} for each in damaged(tensor))):
            found = read(parts, claim)
            if isinstance(found, str):
                assert found.startswith(f"{MODULE}: ")
                refused += 1
                continue
            worst = (found - dense).abs().max() / dense.abs().max()
            for_all = part in parts and parts[part].numel() == 1  # one scale, or one zero
            assert worst < 1e-2 or for_all, (part, parts.get(part, torch.empty(0)).dtype)
    assert refused > 10 * len(tensors)
