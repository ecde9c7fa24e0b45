"""Shrink and expand over the same mixed batches: odd ranks, absent slices, base rows, bad luck."""

import pytest
import torch

from kernels import lora_shrink as shrink_module
from kernels.launch import KernelArgumentError
from kernels.lora_expand import lora_addend, lora_expand, lora_expand_reference
from kernels.lora_shrink import hidden_shape, lora_shrink, lora_shrink_reference
from kernels.segments import Segments
from tests.kernels.pools import generator, with_adapters
from tests.kernels.tolerance import assert_near

SLICES = (700, 64, 130)  # more than a span, less than a block, ragged
RANKS = [(8, 8, 8), (4, 0, 64), (17, 1, 33), (0, 0, 16), (0, 0, 0)]
MIXES = {
    "one row": [0],
    "one base row": [-1],
    "ragged segments": [0] * 17 + [2] * 33 + [1],
    "base rows between": [-1, -1, 1, 1, -1, 2, 2, 2, -1],
    "every rank at once": [0, 1, 2, 3, 4],
}
mixes = pytest.mark.parametrize("mix", MIXES)


def batch(mix, width, dtype, device, *, tile=None, capacity=None, vectors=False):
    adapters = with_adapters(
        RANKS, width=width, slices=SLICES, dtype=dtype, device=device, vectors=vectors
    )
    rows = len(MIXES[mix])
    x = torch.randn(rows, width, generator=generator(4)).to(device, dtype)
    y = torch.randn(rows, sum(SLICES), generator=generator(5)).to(device, dtype)
    segments = Segments.of_rows(MIXES[mix], device, tile=tile, capacity=capacity)
    return x, adapters.pool, adapters.site, segments, y


@mixes
@pytest.mark.parametrize("width", [100, 576])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shrink_matches_the_reference(mix, width, dtype, device):
    *arguments, _ = batch(mix, width, dtype, device)
    h = lora_shrink(*arguments).sum(0)
    torch.testing.assert_close(h, lora_shrink_reference(*arguments)[0], rtol=1e-3, atol=1e-3)


@mixes
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expand_matches_the_reference(mix, vectors, dtype, device):
    x, pool, site, segments, y = batch(mix, 100, dtype, device, vectors=vectors)
    h = lora_shrink(x, pool, site, segments)
    expected = lora_expand_reference(h, pool, site, segments, y)
    lora_expand(h, pool, site, segments, y)
    assert_near(y, expected, dtype)


@mixes
@pytest.mark.parametrize("tile", [16, 64])
def test_an_addend_is_what_expand_adds_to_nothing(mix, tile, device):
    x, pool, site, segments, y = batch(mix, 100, torch.bfloat16, device, tile=tile, capacity=9)
    h = lora_shrink(x, pool, site, segments)
    out = torch.full_like(y, float("nan"))
    lora_addend(h, pool, site, segments, out)
    expected = lora_expand_reference(h, pool, site, segments, torch.zeros_like(y))
    assert_near(out, expected, torch.bfloat16)


def test_gains_are_no_addend(device):
    x, pool, site, segments, y = batch("one row", 100, torch.bfloat16, device, vectors=True)
    with pytest.raises(KernelArgumentError, match="gains"):
        lora_addend(lora_shrink(x, pool, site, segments), pool, site, segments, y)


@mixes
def test_segments_cut_in_tiles_and_unused_entries_change_no_bit(mix, device):
    x, pool, site, whole, y = batch(mix, 100, torch.bfloat16, device)
    cut = Segments.of_rows(MIXES[mix], device, tile=16, capacity=9)
    other = y.clone()
    lora_expand(lora_shrink(x, pool, site, whole), pool, site, whole, y)
    lora_expand(lora_shrink(x, pool, site, cut), pool, site, cut, other)
    assert torch.equal(y, other)


def test_base_rows_and_absent_slices_keep_their_bits(device):
    x, pool, site, segments, y = batch("base rows between", 100, torch.bfloat16, device)
    before = y.clone()
    lora_expand(lora_shrink(x, pool, site, segments), pool, site, segments, y)
    base = torch.tensor(MIXES["base rows between"], device=device) == -1
    assert torch.equal(y[base], before[base])
    assert torch.equal(y[2:4, 700:764], before[2:4, 700:764])
    assert not torch.equal(y[2:4, :700], before[2:4, :700])


def test_shrink_writes_every_element_of_a_given_output(device):
    x, pool, site, segments, _ = batch("base rows between", 100, torch.bfloat16, device)
    out = torch.empty(hidden_shape(site, len(x)), dtype=torch.float32, device=device)
    assert lora_shrink(x, pool, site, segments, out=out) is out
    assert out.isfinite().all()
    assert not out[:, 0].any()


@mixes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours(mix, dtype, device):
    x, pool, site, segments, y = batch(mix, 576, dtype, device)
    before = y.clone()
    lora_expand(lora_shrink(x, pool, site, segments), pool, site, segments, y)
    for row in {0, 1, len(x) // 2, len(x) - 1} & set(range(len(x))):
        alone = Segments.of_rows([MIXES[mix][row]], device)
        part = before[row : row + 1]
        lora_expand(lora_shrink(x[row : row + 1], pool, site, alone), pool, site, alone, part)
        assert torch.equal(y[row : row + 1], part)


def test_few_and_many_tokens_give_the_same_bits(device, monkeypatch):
    adapters = with_adapters(
        [(8,), (33,)], width=2500, slices=(64,), dtype=torch.bfloat16, device=device
    )
    segments = Segments.of_rows([0, 0, 1], device)
    x = torch.randn(3, 2500, generator=generator()).to(device, torch.bfloat16)
    y = torch.zeros(2, 3, 64, dtype=torch.bfloat16, device=device)
    few = lora_shrink(x, adapters.pool, adapters.site, segments)
    lora_expand(few, adapters.pool, adapters.site, segments, y[0])
    monkeypatch.setattr(shrink_module, "_FEW_TOKENS", 2)
    many = lora_shrink(x, adapters.pool, adapters.site, segments)
    lora_expand(many, adapters.pool, adapters.site, segments, y[1])
    reference = lora_shrink_reference(x, adapters.pool, adapters.site, segments)[0]
    assert many.shape[0] == 1
    torch.testing.assert_close(few.sum(0), reference, rtol=1e-3, atol=1e-3)
    assert torch.equal(y[0], y[1])


def test_an_adapter_stacked_end_to_end_reads_like_scattered_blocks(device):
    """The same values wherever the blocks of an adapter lie."""
    x, pool, site, segments, _ = batch("one row", 100, torch.float32, device)
    unit, rows = site.a_units[0, 0, 0].item(), 8 * 128
    moved = torch.cat((pool, pool[unit * 64 : unit * 64 + rows]))
    expected = lora_shrink(x, pool, site, segments)
    site.a_units[0, 0, 0] = pool.numel() // 64
    assert torch.equal(lora_shrink(x, moved, site, segments), expected)


def test_takes_no_rows(device):
    adapters = with_adapters([(8,)], width=64, slices=(64,), dtype=torch.float32, device=device)
    nobody = Segments.of_rows([], device, capacity=2)
    x = torch.zeros(0, 64, device=device)
    h = lora_shrink(x, adapters.pool, adapters.site, nobody)
    lora_expand(h, adapters.pool, adapters.site, nobody, torch.zeros(0, 64, device=device))
    assert h.shape[1:] == (0, 1, 16)


def test_refuses_rows_of_another_width_and_a_pool_of_another_type(device):
    x, pool, site, segments, y = batch("one row", 100, torch.float32, device)
    with pytest.raises(KernelArgumentError, match="columns"):
        lora_shrink(x[:, :99], pool, site, segments)
    with pytest.raises(KernelArgumentError, match="pool"):
        lora_shrink(x, pool.half(), site, segments)
    h = lora_shrink(x, pool, site, segments)
    with pytest.raises(KernelArgumentError, match="columns"):
        lora_expand(h, pool, site, segments, y[:, 1:])
