"""The Hopper 4-bit product is exact on integers, in every tile shape, again and again."""

from dataclasses import replace

import pytest
import torch

from kernels import w4_hopper
from kernels.launch import KernelArgumentError
from kernels.matmul_w4a16 import dequantize_w4, pack_w4
from kernels.rms_norm import rms_norm
from kernels.w4_hopper import Tile, choose_tile, pack_meta, w4_planes

hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="needs a Hopper GPU",
)
TILES = {
    "16x128 one group": Tile(rows=16, groups=1, blocks=2, weight_stages=4, x_stages=8, cap=80),
    "16x128 two groups": Tile(
        rows=16, groups=2, blocks=1, weight_stages=4, x_stages=8, registers=104, cap=80
    ),
    "16x256 four groups": Tile(
        rows=16, groups=4, blocks=1, weight_stages=4, x_stages=4, registers=112
    ),
    "64x256 two groups": Tile(
        rows=64, groups=2, blocks=2, weight_stages=4, x_stages=4, registers=232
    ),
    "128x128": Tile(rows=128, groups=2, blocks=1, weight_stages=4, x_stages=8, registers=232),
    "256x128": Tile(rows=256, groups=2, blocks=1, weight_stages=3, x_stages=4, registers=232),
}


def integers(inputs, outputs, rows, group, dtype, seed=0):
    random = torch.Generator(device="cuda").manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=random, device="cuda")

    codes = draw(0, 16, inputs, outputs).to(torch.uint8)
    groups = -(-inputs // group)
    scales = draw(1, 3, groups, outputs).to(dtype)
    zeros = draw(0, 17, groups, outputs)
    weight = pack_w4(codes, scales, zeros, group=group)
    x = draw(-1, 2, rows, inputs).to(dtype)
    return x, weight


def product(x, weight, tile, bias=None):
    meta = pack_meta(weight.scales, weight.zeros)
    planes = w4_planes(x, weight.words, meta, tile, group=weight.group, bias=bias)
    return planes.float().sum(0)


@hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES.keys())
@pytest.mark.parametrize("rows", [1, 16, 63, 300])
def test_integers_come_out_exact(tile, rows, dtype):
    x, weight = integers(1280, 768, rows, 128, dtype)
    want = x.float() @ dequantize_w4(weight, dtype=torch.float32)
    assert torch.equal(product(x, weight, replace(tile, splits=2)), want)
    assert torch.equal(product(x, weight, replace(tile, splits=3)), want)  # 2 + 2 + 1 blocks
    assert torch.equal(product(x, weight, tile), want.to(dtype).float())


@hopper
@pytest.mark.parametrize("group", [128, 1280])
@pytest.mark.parametrize("name", ["16x128 one group", "64x256 two groups", "128x128"])
def test_a_bias_counts_once(name, group):
    x, weight = integers(1280, 768, 17, group, torch.float16)
    bias = torch.arange(768, device="cuda").half()
    want = x.float() @ dequantize_w4(weight, dtype=torch.float32) + bias.float()
    for splits in (1, 3):
        got = product(x, weight, replace(TILES[name], splits=splits), bias)
        assert torch.equal(got, want if splits > 1 else want.half().float())


@hopper
def test_a_chain_reads_what_the_kernel_before_it_wrote(monkeypatch):
    """Each product's x is the sum of the planes before it: a kernel that starts early shows."""
    monkeypatch.undo()  # filling new memory would come between the kernels
    x, weight = integers(1024, 1024, 16, 128, torch.float16)
    tile = replace(TILES["16x128 one group"], splits=4)
    meta = pack_meta(weight.scales, weight.zeros)

    def chain(wait):
        y = x
        for _ in range(20):
            planes = w4_planes(y, weight.words, meta, tile, group=128)
            wait()
            y = rms_norm(planes, torch.ones(1024, device="cuda"), 1e-5, out=torch.empty_like(x))
            wait()
        return y

    want = chain(torch.cuda.synchronize)
    for _ in range(50):
        assert torch.equal(chain(lambda: None), want)


@hopper
@pytest.mark.parametrize("group", [64, 128, 256, 1024])
def test_every_group_size_reads_its_own_scales(group):
    tile = TILES["64x256 two groups"]
    x, weight = integers(1024, 256, 17, group, torch.float16)
    want = x.float() @ dequantize_w4(weight, dtype=torch.float32)
    assert torch.equal(product(x, weight, tile), want.half().float())


@hopper
@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 28672), (4096, 1024)])
def test_thousands_of_runs_give_the_same_bits(inputs, outputs, rows):
    """Many programs at once and a ring in full use: a slot freed too early shows here."""
    x, weight = integers(inputs, outputs, rows, 128, torch.float16, seed=3)
    meta = pack_meta(weight.scales, weight.zeros)
    tile = choose_tile(rows, outputs, inputs // 256, x.device)
    first = w4_planes(x, weight.words, meta, tile, group=128)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(3000):
        differing += (w4_planes(x, weight.words, meta, tile, group=128) != first).any()
    assert int(differing) == 0


@hopper
def test_a_rows_result_does_not_depend_on_its_neighbours():
    x, weight = integers(1024, 512, 64, 128, torch.float16)
    x = torch.randn_like(x)
    tile = TILES["64x256 two groups"]
    together = product(x, weight, tile)
    assert torch.equal(together[:1], product(x[:1].contiguous(), weight, tile))
    assert torch.equal(together[17:40], product(x[17:40].contiguous(), weight, tile))


@hopper
def test_the_pair_that_is_not_safe_is_refused():
    x, weight = integers(1024, 256, 128, 128, torch.float16)
    unsafe = Tile(rows=128, groups=2, blocks=2, weight_stages=3, x_stages=6, registers=232)
    with pytest.raises(KernelArgumentError, match="not safe"):
        product(x, weight, unsafe)


def test_parts_of_k_fill_the_last_round_of_programs(monkeypatch):
    """224 columns of tiles on 132 multiprocessors: two parts would make a second round of a few."""
    monkeypatch.setattr(w4_hopper, "multiprocessors", lambda _device: 132)
    cpu = torch.device("cpu")
    assert choose_tile(1, 28672, 16, cpu).splits == 3
    assert choose_tile(64, 28672, 16, cpu).splits == 1
    assert choose_tile(1, 4096, 56, cpu).splits == 12
    assert choose_tile(128, 6144, 16, cpu).splits == 2
    assert choose_tile(1, 128, 1, cpu).splits == 1


def test_the_chosen_tile_fits_the_problem():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for rows in (1, 16, 17, 64, 100, 256, 512):
        for columns, blocks in ((6144, 16), (4096, 56), (28672, 16), (3584, 74), (128, 1)):
            tile = choose_tile(rows, columns, blocks, device)
            part = -(-blocks // tile.splits)
            assert part * (tile.splits - 1) < blocks
            assert columns % tile.columns == 0
