"""The 4-bit product of a CPU: the codes' own values, and rows that do not see each other."""

import pytest
import torch

from engine.layers.int4 import FEW, FewOrMany, Int4
from engine.layers.linear import Prepacked
from engine.quant.formats import Quantised

pytestmark = pytest.mark.skipif(not Int4.usable(), reason="this build of torch has no such product")


def weight(K: int, N: int, group: int, *, seed: int = 0, act_order: bool = False) -> Quantised:
    random = torch.Generator().manual_seed(seed)
    shape = (K // group, N)
    return Quantised(
        codes=torch.randint(0, 16, (K, N), dtype=torch.uint8, generator=random),
        scales=(torch.rand(shape, generator=random) * 0.02 + 0.001).half(),
        zeros=torch.randint(0, 17, shape, dtype=torch.int16, generator=random),
        group=group,
        perm=torch.randperm(K, generator=random) if act_order else None,
    )


@pytest.mark.parametrize(
    ("K", "N", "group"),
    [(64, 16, 32), (576, 192, 64), (192, 576, 192), (576, 48, 576), (384, 80, 128), (512, 32, 512)],
)
@pytest.mark.parametrize("act_order", [False, True])
def test_a_product_is_that_of_the_dequantised_weight(K, N, group, act_order):
    quantised = weight(K, N, group, act_order=act_order)
    bias = torch.randn(N).bfloat16()
    x = torch.randn(5, K).bfloat16()
    expected = x.float() @ quantised.dense().t() + bias.float()
    error = (Int4(quantised, bias)(x).float() - expected).norm() / expected.norm()
    assert error < 0.006, "bfloat16 scales and one rounding"


def test_a_row_has_the_same_bits_alone_and_among_any_others():
    linear, x = Int4(weight(576, 192, 32, act_order=True)), torch.randn(40, 576).bfloat16()
    together = linear(x)
    for rows in ([0], [39], [7, 3], list(range(1, 4)), list(range(5, 22)), list(range(39, -1, -1))):
        assert torch.equal(linear(x[rows]), together[rows])


def test_activations_that_are_a_view_give_the_same_bits():
    linear, x = Int4(weight(64, 32, 32)), torch.randn(6, 128).bfloat16()
    assert torch.equal(linear(x[:, :64]), linear(x[:, :64].contiguous()))


@pytest.mark.parametrize("quantised", [weight(64, 24, 32), weight(96, 16, 48), weight(48, 16, 48)])
def test_a_weight_the_operator_cannot_take_is_known_beforehand(quantised):
    assert not Int4.fits(quantised)


def test_few_rows_go_through_the_codes_and_many_through_the_dense_weight():
    quantised = weight(64, 32, 32)
    few, many = Int4(quantised), Prepacked(quantised.dense().bfloat16())
    both, x = FewOrMany(few, many), torch.randn(FEW + 1, 64).bfloat16()
    assert torch.equal(both(x[:FEW]), few(x[:FEW]))
    assert torch.equal(both(x), many(x))
