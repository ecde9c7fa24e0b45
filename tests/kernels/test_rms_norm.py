import pytest
import torch

from kernels.launch import KernelArgumentError
from kernels.rms_norm import rms_norm, rms_norm_reference
from tests.kernels.tolerance import assert_near

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def batch(rows, hidden, dtype, device):
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, hidden, generator=random).to(device, dtype)
    residual = torch.randn(rows, hidden, generator=random).to(device, dtype)
    return x, residual, torch.rand(hidden, generator=random).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("hidden", [1, 63, 257, 576])
def test_matches_the_reference(rows, hidden, dtype, device):
    x, _, weight = batch(rows, hidden, dtype, device)
    assert_near(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adds_the_residual_in_place_before_normalising(dtype, device):
    x, residual, weight = batch(5, 257, dtype, device)
    expected, stream = rms_norm_reference(x, weight, 1e-5, residual=residual)
    out = torch.empty_like(x)
    assert rms_norm(x, weight, 1e-5, residual=residual, out=out) is out
    assert_near(out, expected, dtype)
    assert_near(residual, stream, dtype)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_adds_up_what_comes_in_planes(parts, device):
    random = torch.Generator().manual_seed(parts)
    x = torch.randn(parts, 5, 257, generator=random).to(device)
    _, residual, weight = batch(5, 257, torch.bfloat16, device)
    expected, stream = rms_norm_reference(x, weight, 1e-5, residual=residual)
    y = rms_norm(x, weight, 1e-5, residual=residual)
    assert_near(y, expected, torch.bfloat16)
    assert_near(residual, stream, torch.bfloat16)


@pytest.mark.parametrize("chosen", [None, [4, 1]])
def test_adds_what_comes_beside_the_planes(chosen, device):
    x = torch.randn(2, 5, 257, generator=torch.Generator().manual_seed(1)).to(device)
    addend, residual, weight = batch(5, 257, torch.bfloat16, device)
    rows = None if chosen is None else torch.tensor(chosen, device=device)
    facts = {"addend": addend, "rows": rows}
    expected, _ = rms_norm_reference(x, weight, 1e-5, residual=residual, **facts)
    y = rms_norm(x, weight, 1e-5, residual=residual, **facts)
    assert_near(y, expected, torch.bfloat16)


@pytest.mark.parametrize("parts", [1, 3])
def test_takes_chosen_rows_and_leaves_the_residual_alone(parts, device):
    x = torch.randn(parts, 7, 63, generator=torch.Generator().manual_seed(0)).to(device)
    _, residual, weight = batch(7, 63, torch.float32, device)
    rows, before = torch.tensor([6, 0, 3], device=device), residual.clone()
    y = rms_norm(x, weight, 1e-5, residual=residual, rows=rows)
    expected, _ = rms_norm_reference(x[:, rows], weight, 1e-5, residual=residual[rows])
    assert_near(y, expected, torch.float32)
    assert torch.equal(residual, before)


def test_leaves_x_alone(device):
    x, _, weight = batch(3, 64, torch.float32, device)
    before = x.clone()
    rms_norm(x, weight, 1e-5)
    assert torch.equal(x, before)


def test_takes_rows_of_a_wider_tensor(device):
    x, _, weight = batch(3, 128, torch.bfloat16, device)
    part = x[:, 64:]
    y = rms_norm(part, weight[:64], 1e-5)
    assert torch.equal(y, rms_norm(part.contiguous(), weight[:64], 1e-5))


def test_takes_no_rows(device):
    x, _, weight = batch(0, 64, torch.float32, device)
    assert rms_norm(x, weight, 1e-5).shape == (0, 64)


def test_a_row_does_not_depend_on_its_neighbours(device):
    x, residual, weight = batch(33, 576, torch.bfloat16, device)
    alone = rms_norm(x[7:8], weight, 1e-5, residual=residual[7:8].clone())
    assert torch.equal(rms_norm(x, weight, 1e-5, residual=residual)[7:8], alone)


def test_refuses_a_weight_of_another_width(device):
    x, _, weight = batch(3, 64, torch.float32, device)
    with pytest.raises(KernelArgumentError, match="weight"):
        rms_norm(x, weight[:63], 1e-5)
