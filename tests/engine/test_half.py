"""A head with float16 weights: float32's own results, and rows that do not see each other."""

import pytest
import torch

from engine.layers.half import Half

pytestmark = pytest.mark.skipif(not Half.usable(), reason="this build of torch has no such product")


@pytest.mark.parametrize(("K", "N"), [(64, 16), (576, 257), (1, 1), (63, 4097)])
@pytest.mark.parametrize("rows", [1, 8, 17])
def test_a_product_is_that_of_float32(K, N, rows):
    weight, bias, x = torch.randn(N, K).half(), torch.randn(N), torch.randn(rows, K)
    expected = x.double() @ weight.double().t() + bias.double()
    assert ((Half(weight, bias)(x) - expected).abs() < 1e-4).all()


def test_a_row_has_the_same_bits_alone_and_among_any_others():
    linear, x = Half(torch.randn(513, 576)), torch.randn(40, 576)
    together = linear(x)
    for rows in ([0], [39], [7, 3], list(range(5, 22)), list(range(39, -1, -1))):
        assert torch.equal(linear(x[rows]), together[rows])


def test_activations_that_are_a_view_give_the_same_bits():
    linear, x = Half(torch.randn(33, 64)), torch.randn(6, 128)
    assert torch.equal(linear(x[:, :64]), linear(x[:, :64].contiguous()))


def test_weights_that_float16_holds_fit():
    assert Half.fits(torch.randn(5000, 8).half())
    assert Half.fits(torch.randn(50, 8).bfloat16())
    assert Half.fits(torch.full((1, 2), 1e-8, dtype=torch.bfloat16)), "next to zero"


@pytest.mark.parametrize("value", [1.0 + 2**-12, 70000.0, -1e30])
def test_a_weight_that_float16_changes_does_not_fit(value):
    weight = torch.ones(5000, 8)
    weight[4999, 7] = value
    assert not Half.fits(weight)
