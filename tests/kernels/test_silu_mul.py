import pytest
import torch

from kernels.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.tolerance import assert_near


def gate_up(rows, width, dtype, device):
    random = torch.Generator().manual_seed(width)
    return (torch.randn(rows, 2 * width, generator=random) * 4).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("width", [1, 63, 257, 1536])
def test_matches_the_reference(rows, width, dtype, device):
    x = gate_up(rows, width, dtype, device)
    assert_near(silu_mul(x), silu_mul_reference(x), dtype)


def test_adds_up_what_comes_in_planes(device):
    x = torch.stack([gate_up(3, 257, torch.float32, device) * i for i in (0.1, 0.4, -0.2)])
    y = silu_mul(x, dtype=torch.bfloat16)
    assert_near(y, silu_mul_reference(x).to(torch.bfloat16), torch.bfloat16)


@pytest.mark.parametrize("parts", [1, 3])
def test_adds_what_comes_beside_the_planes(parts, device):
    x = torch.stack([gate_up(3, 257, torch.float32, device) * i for i in (0.1, 0.4, -0.2)[:parts]])
    addend = gate_up(3, 257, torch.bfloat16, device).flip(1)
    y = silu_mul(x, addend=addend, dtype=torch.bfloat16)
    assert_near(y, silu_mul_reference(x, addend).to(torch.bfloat16), torch.bfloat16)


def test_writes_every_element_of_a_given_output(device):
    x = gate_up(3, 257, torch.bfloat16, device)
    out = torch.empty(3, 257, dtype=torch.bfloat16, device=device)
    assert silu_mul(x, out=out) is out
    assert out.isfinite().all()


def test_large_gates_neither_overflow_nor_vanish(device):
    x = torch.tensor([[-200.0, 200.0, 0.0, 1.0, 1.0, 1.0]], device=device)
    torch.testing.assert_close(silu_mul(x), torch.tensor([[0.0, 200.0, 0.0]], device=device))


def test_a_row_does_not_depend_on_its_neighbours(device):
    x = gate_up(33, 1536, torch.bfloat16, device)
    assert torch.equal(silu_mul(x)[9:10], silu_mul(x[9:10]))


def test_takes_no_rows(device):
    assert silu_mul(gate_up(0, 64, torch.float32, device)).shape == (0, 64)
