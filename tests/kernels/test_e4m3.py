import pytest
import torch

from kernels.e4m3 import LARGEST, SMALLEST, from_e4m3, to_e4m3


def every_code():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return codes[codes.float().isfinite()]


def test_what_e4m3_holds_comes_back_as_it_was():
    values = every_code().float() * 2**-5
    codes, size = to_e4m3(values)
    assert torch.equal(from_e4m3(codes, size, torch.float32), values)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 300.0, 1e5 / LARGEST])
def test_a_value_is_off_by_a_sixteenth_of_itself_or_a_step_of_the_least(scale):
    values = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)) * scale
    codes, size = to_e4m3(values)
    step = size.float().unsqueeze(-1) / LARGEST * 2**-9
    off = (from_e4m3(codes, size, torch.float32) - values).abs()
    assert bool((off <= torch.maximum(values.abs() * 0.0626, step * 0.51)).all())


def test_a_vector_does_not_depend_on_others():
    values = torch.randn(7, 16, generator=torch.Generator().manual_seed(1))
    values[3] *= 1e4
    codes, size = to_e4m3(values)
    alone = to_e4m3(values[2])
    assert torch.equal(codes[2].view(torch.uint8), alone[0].view(torch.uint8))
    assert torch.equal(size[2], alone[1])


def test_zeros_stay_zero_and_what_is_not_finite_stays_so():
    codes, size = to_e4m3(torch.zeros(3, 8))
    assert torch.equal(from_e4m3(codes, size, torch.float32), torch.zeros(3, 8))
    assert torch.equal(size.float(), torch.full((3,), SMALLEST))
    for bad in (float("nan"), float("inf")):
        codes, size = to_e4m3(torch.tensor([1.0, bad, 2.0]))
        assert not from_e4m3(codes, size, torch.float32)[1].isfinite()
