"""What CUDA multiplies with, in bytes: packed from every format, it is the weight it came from."""

import pytest
import torch

from engine.layers.eight import W8, fits, fuse_bytes, pack_bytes
from engine.quant.bytewise import unpack_bytes
from engine.quant.configs import read_scheme
from engine.quant.formats import PackedTensors, unpack
from engine.quant.schemes import Claim
from tests.engine.bytes_checkpoints import BYTE_LAYOUTS, ByteLayout, byte_module
from tests.engine.checkpoints import Layout, quantised

CPU = torch.device("cpu")
SIZE = (256, 96)


def read(layout, seed=0):
    parts, dense = byte_module(*SIZE, layout, torch.Generator().manual_seed(seed))
    claim = read_scheme({"config.json": layout.config}).claim("a.q_proj")
    assert claim is not None
    return unpack_bytes("a.q_proj", parts, SIZE, claim), dense


def product(parts, x, bias=None):
    return W8(fuse_bytes(parts), dtype=x.dtype, bias=bias)(x)


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
def test_a_product_is_that_of_the_dense_weight(layout):
    weight, dense = read(layout)
    x, bias = torch.randn(5, 256), torch.randn(96)
    expected = torch.nn.functional.linear(x, dense, bias)
    torch.testing.assert_close(product([pack_bytes(weight, CPU)], x, bias), expected)


def test_blocks_wider_than_a_weight_are_its_columns_and_odd_ones_do_not_fit():
    wide, dense = read(ByteLayout("float", "block", method="fp8", block=(64, 512)))
    x = torch.randn(2, 256)
    assert fits(wide)
    torch.testing.assert_close(product([pack_bytes(wide, CPU)], x), x @ dense.t())
    assert not fits(read(ByteLayout("float", "block", method="fp8", block=(8, 40)))[0])


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_of_8_bits_is_one_too(act_order):
    layout = Layout("gptq", 32, act_order=act_order, bits=8)
    parts, dense = quantised(*SIZE, layout, torch.Generator().manual_seed(0))
    weight = unpack(PackedTensors(module="a", **parts), SIZE, Claim())
    x = torch.randn(5, 256)
    torch.testing.assert_close(product([pack_bytes(weight, CPU)], x), x @ dense.t())


@pytest.mark.parametrize(
    "layouts",
    [
        (ByteLayout("float", "block"), ByteLayout("float", "block")),
        (ByteLayout("float", "block"), ByteLayout("float", "channel")),
        (ByteLayout("int", "channel"), ByteLayout("float", "channel")),
        (ByteLayout("int", "channel"), ByteLayout("int", "channel", symmetric=False)),
    ],
    ids=lambda layouts: " and ".join(map(str, layouts)),
)
def test_modules_side_by_side_are_one_product_where_they_are_stored_alike(layouts):
    found = [read(layout, seed=i) for i, layout in enumerate(layouts)]
    parts = [pack_bytes(weight, CPU) for weight, _ in found]
    assert len(fuse_bytes(parts)) == (1 if layouts[0] == layouts[1] else 2)
    x = torch.randn(3, 256)
    expected = x @ torch.cat([dense for _, dense in found]).t()
    torch.testing.assert_close(product(parts, x), expected)
    linear = W8(fuse_bytes(parts), dtype=x.dtype)
    assert linear.size == (256, 192)
    torch.testing.assert_close(linear.parts(x).sum(0), expected)
    assert linear.wide(x.bfloat16()).dtype == torch.float32
