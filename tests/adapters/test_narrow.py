"""Codes of 8 bits are the nearest there are, and say exactly what is left of an adapter."""

import numpy as np
import pytest
import torch

from adapters.narrow import Narrow, kind_of, narrowed, rounded, widened
from adapters.pack import Factor, PackedAdapter
from kernels import lora_codes

kinds = pytest.mark.parametrize("kind", list(Narrow))
TYPES = [torch.float16, torch.bfloat16, torch.float32]


def adapter(dtype, rows=37, width=70):
    random = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-4, 1, rows)[:, None]  # rows of very different sizes
    a = (torch.randn(rows, width, generator=random) * sizes).to(dtype)
    a[3], a[4, 5] = 0, 0.25
    b = torch.randn(90, rows, generator=random).to(dtype)
    return PackedAdapter("d", rows, {(0, "q_proj"): Factor(a, b, lora_bias=torch.ones(90))})


def only(packed):
    (factor,) = packed.factors.values()
    return factor


@kinds
@pytest.mark.parametrize("dtype", TYPES)
def test_no_other_code_is_nearer(kind, dtype):
    exact, found = only(adapter(dtype)), only(narrowed(adapter(dtype), kind))
    back = widened(found)
    codes = torch.arange(256, dtype=torch.uint8)
    every = codes.view(torch.int8 if kind is Narrow.INT8 else torch.float8_e4m3fn).float()
    every = every[every.abs() <= kind.largest].unique()
    for matrix, stored, largest, value in (
        (exact.a, found.a, found.a_largest, back.a), (exact.b, found.b, found.b_largest, back.b),
    ):  # fmt: skip
        assert kind_of(stored) is kind
        assert largest.dtype == dtype
        assert torch.equal(largest, matrix.abs().amax(1))
        sizes = largest.float().unsqueeze(1)
        choices = every * (sizes / kind.largest).unsqueeze(-1)
        nearest = (matrix.float().unsqueeze(-1) - choices).abs().amin(-1)
        assert bool(((value - matrix.float()).abs() <= nearest + 1e-6 * sizes).all())


@kinds
def test_the_rest_of_an_adapter_is_left_alone(kind):
    packed = narrowed(adapter(torch.float16), kind)
    assert torch.equal(only(packed).lora_bias, torch.ones(90))
    assert not only(rounded(adapter(torch.float16), kind)).a[3].any()  # a row of zeros
    plain = only(adapter(torch.float16))
    assert widened(plain) is plain
    assert packed.nbytes < 0.6 * adapter(torch.float16).nbytes


@kinds
def test_a_factor_of_rank_0_has_no_codes(kind):
    empty = Factor(torch.zeros(0, 8), torch.zeros(5, 0))
    found = only(narrowed(PackedAdapter("d", 0, {(0, "q_proj"): empty}), kind))
    assert found.a.shape == (0, 8)
    assert found.b.shape == (5, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 3e4])
def test_sizes_at_the_ends_of_a_type_are_kept(dtype, size):
    values = (torch.tensor([[1.0, -0.5, 0.25]]) * size).to(dtype)
    packed = PackedAdapter("d", 1, {(0, "q_proj"): Factor(values, values.t().contiguous())})
    for kind in Narrow:
        back = only(rounded(packed, kind)).a
        np.testing.assert_allclose(back, values.float(), rtol=0.01 if size >= 1 else 0.1)


def test_what_packs_and_what_computes_mean_the_same_by_a_code():
    assert [str(kind) for kind in Narrow] == [str(kind) for kind in lora_codes.LoraCodes]
    for kind in Narrow:
        same = lora_codes.LoraCodes(kind)
        codes = only(narrowed(adapter(torch.float16), kind)).a
        assert codes.dtype == same.dtype
        assert kind.largest == same.largest
        decoded = codes if kind is Narrow.INT8 else codes.view(torch.float8_e4m3fn)
        assert torch.equal(decoded.float(), same.values(codes))
