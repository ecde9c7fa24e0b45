"""Adapters in 8 bits: what they bring is what their decoded matrices bring, whoever is beside."""

import pytest
import torch

from kernels import lora_shrink as shrink_module
from kernels.launch import interpreting
from kernels.lora_codes import LoraCodes
from kernels.lora_expand import lora_addend, lora_expand, lora_expand_reference
from kernels.lora_shrink import hidden_shape, lora_shrink, lora_shrink_reference
from kernels.segments import Segments
from tests.kernels.pools import generator, with_adapters
from tests.kernels.tolerance import assert_near

SLICES = (150, 20)  # a block and a part of one, part of a block
RANKS = [(8, 0), (4, 17), (0, 0)]
MIXES = {"ragged segments": [0, 0] + [1] * 17, "base rows between": [-1, 0, 1, 1, -1, 2, 0]}
kinds = pytest.mark.parametrize("codes", list(LoraCodes))
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def batch(mix, width, dtype, device, codes, *, tile=None, capacity=None, vectors=False):
    adapters = with_adapters(
        RANKS, width=width, slices=SLICES, dtype=dtype, device=device, codes=codes, vectors=vectors
    )
    rows = len(MIXES[mix])
    x = torch.randn(rows, width, generator=generator(4)).to(device, dtype)
    y = torch.randn(rows, sum(SLICES), generator=generator(5)).to(device, dtype)
    segments = Segments.of_rows(MIXES[mix], device, tile=tile, capacity=capacity)
    return x, adapters.pool, adapters.site, segments, y


@kinds
@dtypes
def test_both_match_a_reference_that_decodes(dtype, codes, device):
    x, pool, site, segments, y = batch("base rows between", 100, dtype, device, codes, vectors=True)
    h = lora_shrink(x, pool, site, segments)
    reference = lora_shrink_reference(x, pool, site, segments)[0]
    torch.testing.assert_close(h.sum(0), reference, rtol=1e-3, atol=1e-3)
    expected = lora_expand_reference(h, pool, site, segments, y)
    lora_expand(h, pool, site, segments, y)
    assert_near(y, expected, dtype)


@pytest.mark.skipif(interpreting(), reason="says nothing of kernels")
@kinds
def test_what_they_bring_is_near_what_the_matrices_bring_that_were_coded(codes, device):
    (x, pool, site, segments, y), plain = (
        batch("base rows between", 100, torch.float32, device, kind) for kind in (codes, None)
    )
    for pages, where, out in ((pool, site, y.zero_()), (plain[1], plain[2], plain[4].zero_())):
        lora_expand(lora_shrink(x, pages, where, segments), pages, where, segments, out)
    off = float((y - plain[4]).norm() / plain[4].norm())
    assert 1e-4 < off < (0.02 if codes is LoraCodes.INT8 else 0.08)


@kinds
def test_an_addend_is_what_expand_adds_to_nothing(codes, device):
    mix = "ragged segments" if codes is LoraCodes.INT8 else "base rows between"
    x, pool, site, segments, y = batch(mix, 100, torch.bfloat16, device, codes, tile=16, capacity=9)
    out = torch.full_like(y, float("nan"))
    h = torch.full(hidden_shape(site, len(x)), float("nan"), device=device)
    lora_addend(lora_shrink(x, pool, site, segments, out=h), pool, site, segments, out)
    assert h.isfinite().all()
    expected = lora_expand_reference(h, pool, site, segments, torch.zeros_like(y))
    assert_near(out, expected, torch.bfloat16)


@kinds
def test_a_row_does_not_depend_on_its_neighbours(codes, device):
    mix = "ragged segments"
    x, pool, site, segments, y = batch(mix, 140, torch.bfloat16, device, codes)
    before = y.clone()
    lora_expand(lora_shrink(x, pool, site, segments), pool, site, segments, y)
    for row in (0, 9):
        alone = Segments.of_rows([MIXES[mix][row]], device)
        part = before[row : row + 1]
        lora_expand(lora_shrink(x[row : row + 1], pool, site, alone), pool, site, alone, part)
        assert torch.equal(y[row : row + 1], part)


@kinds
def test_few_and_many_tokens_give_the_same_bits(codes, device, monkeypatch):
    """Terms are scaled and rounded alike, whether one program adds them up or the next kernel."""
    adapters = with_adapters(
        [(8,), (33,)], width=2500, slices=(64,), dtype=torch.bfloat16, device=device, codes=codes
    )
    pool, site, segments = adapters.pool, adapters.site, Segments.of_rows([0, 0, 1], device)
    x = torch.randn(3, 2500, generator=generator()).to(device, torch.bfloat16)
    y = torch.zeros(2, 3, 64, dtype=torch.bfloat16, device=device)
    few = lora_shrink(x, pool, site, segments)
    monkeypatch.setattr(shrink_module, "_FEW_TOKENS", 2)
    many = lora_shrink(x, pool, site, segments)
    for hidden, out in ((few, y[0]), (many, y[1])):
        lora_expand(hidden, pool, site, segments, out)
    assert many.shape[0] == 1
    assert few.shape[0] == (3 if interpreting() or x.is_cuda else 1)
    assert torch.equal(few.sum(0), many[0])
    assert torch.equal(y[0], y[1])


def test_rows_of_zeros_are_zeros(device):
    adapters = with_adapters(
        [(8,)], width=64, slices=(64,), dtype=torch.float16, device=device, scale=0.0,
        codes=LoraCodes.INT8,
    )  # fmt: skip
    segments = Segments.of_rows([0], device)
    x = torch.ones(1, 64, dtype=torch.float16, device=device)
    h = lora_shrink(x, adapters.pool, adapters.site, segments)
    assert not h.any()
