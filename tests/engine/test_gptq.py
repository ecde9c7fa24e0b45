import pytest
import torch

from engine.quant.gptq import Quantised, pack, quantise, unpack


def activations(tokens, width, seed=0):
    """Correlated inputs with a few loud channels, as layers of a language model see them."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator) / width**0.5
    loud = torch.ones(width)
    loud[:: max(width // 5, 1)] = 6.0
    return torch.randn(tokens, width, generator=generator) @ mix * loud


def problem(inputs, outputs, seed=0):
    x = activations(400, inputs, seed)
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed + 1))
    return x, weight, x.T @ x / len(x)


def random_quantised(inputs, outputs, group, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (inputs, outputs), dtype=torch.uint8, generator=generator)
    zeros = torch.randint(1, 16, (inputs // group, outputs), dtype=torch.uint8, generator=generator)
    scales = torch.rand(inputs // group, outputs, generator=generator).half()
    group_of = (torch.randperm(inputs, generator=generator) // group).int()
    return Quantised(codes, scales, zeros, group_of)


SHAPES = [
    pytest.param(32, 8, 32, id="one_group"),
    pytest.param(96, 24, 32, id="three_groups"),
    pytest.param(160, 72, 16, id="odd_multiples"),
]


@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_unpack_gives_back_what_was_packed(inputs, outputs, group):
    original = random_quantised(inputs, outputs, group)
    again = unpack(pack(original))
    for field in ("codes", "scales", "zeros", "group_of"):
        assert torch.equal(getattr(again, field), getattr(original, field)), field


@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_the_packed_tensors_mean_the_same_read_bit_by_bit(inputs, outputs, group):
    original = random_quantised(inputs, outputs, group)
    packed = pack(original)
    words, zero_words = packed["qweight"].tolist(), packed["qzeros"].tolist()
    dense = original.dequantise()
    for k in range(0, inputs, 5):
        g = int(packed["g_idx"][k])
        for n in range(0, outputs, 3):
            code = (words[k // 8][n] >> (4 * (k % 8))) & 15
            zero = ((zero_words[g][n // 8] >> (4 * (n % 8))) & 15) + 1
            expected = (code - zero) * float(packed["scales"][g, n])
            assert dense[n, k].item() == pytest.approx(expected, abs=1e-6)


def test_packed_shapes_and_types_are_those_of_the_layout():
    packed = pack(random_quantised(96, 24, 32))
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in packed.items()}
    assert shapes == {
        "qweight": (torch.int32, (12, 24)),
        "qzeros": (torch.int32, (3, 3)),
        "scales": (torch.float16, (3, 24)),
        "g_idx": (torch.int32, (96,)),
    }


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 8), (96, 40), (288, 16)])
def test_the_layers_output_is_closer_than_with_rounding_to_nearest(inputs, outputs):
    x, weight, hessian = problem(inputs, outputs)
    nearest = quantise(weight, torch.eye(inputs), group=32)  # no correlations: nothing to correct
    corrected = quantise(weight, hessian, group=32)

    def error(quantised):
        return ((x @ (quantised.dequantise() - weight).T) ** 2).mean().item()

    assert error(corrected) < 0.7 * error(nearest)


def test_weights_that_lie_on_a_grid_are_reproduced_exactly():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (64, 8), generator=generator)
    codes[::32], codes[1::32] = 0, 15  # each group spans the whole range
    weight = ((codes - 7) * 0.25).T.contiguous()
    loudest_first = torch.diag(torch.linspace(2, 1, 64))
    assert torch.equal(quantise(weight, loudest_first, group=32).dequantise(), weight)


@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_no_zero_would_wrap_in_the_packed_form(shift):
    _, weight, hessian = problem(64, 16)
    zeros = quantise(weight.clamp(-1, 1) + shift, hessian, group=32).zeros
    assert zeros.min() >= 1
    assert zeros.max() <= 15


def test_the_loudest_inputs_share_the_first_group():
    _, weight, hessian = problem(96, 8)
    group_of = quantise(weight, hessian, group=32).group_of
    loudest = hessian.diagonal().argsort(descending=True, stable=True)[:32]
    assert (group_of[loudest] == 0).all()
    assert group_of.bincount().tolist() == [32, 32, 32]


def test_inputs_that_never_fire_leave_the_result_finite():
    x, weight, _ = problem(64, 8)
    x[:, 10:20] = 0
    assert quantise(weight, x.T @ x / len(x), group=32).dequantise().isfinite().all()


def test_a_layer_of_zeros_stays_zero():
    dense = quantise(torch.zeros(8, 64), torch.eye(64), group=32).dequantise()
    assert torch.equal(dense, torch.zeros(8, 64))


def test_the_same_input_gives_the_same_bits():
    _, weight, hessian = problem(96, 24)
    first, second = (pack(quantise(weight, hessian, group=32)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_splitting_a_fused_module_gives_each_its_own_columns():
    fused = random_quantised(64, 24, 32)
    parts = fused.split([16, 8])
    assert torch.equal(torch.cat([part.dequantise() for part in parts]), fused.dequantise())
