import pytest
import torch

from kernels import sample as module
from kernels.philox import uniforms
from kernels.sample import sample, sample_reference
from tests.kernels.pools import generator

VOCABULARY = 997


def logits(rows, device, *, vocabulary=VOCABULARY, seed=0):
    return (torch.randn(rows, vocabulary, generator=generator(seed)) * 3).to(device)


def settings(rows, device, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=0.5):
    def column(value, dtype=torch.float32):
        values = value if isinstance(value, list) else [value] * rows
        return torch.tensor(values, dtype=dtype, device=device)

    return (
        column(temperature),
        column(top_k, torch.int32),
        column(top_p),
        column(min_p),
        column(uniform),
    )


def drawn(row, device, count=12, **options):
    """Which tokens of one row come up over a grid of uniform numbers."""
    numbers = [(i + 0.5) / count for i in range(count)]
    tokens = sample(row.expand(count, -1), *settings(count, device, uniform=numbers, **options))
    return set(tokens.tolist())


@pytest.mark.parametrize("vocabulary", [5000, 5120])
def test_temperature_zero_takes_the_largest_and_the_lowest_id_among_equals(vocabulary, device):
    rows = torch.zeros(3, vocabulary, device=device)
    rows[0, [7, 4098]] = 1.0
    rows[1, [4999, 4097]] = 2.0
    assert sample(rows, *settings(3, device, temperature=0.0)).tolist() == [7, 4097, 0]


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.05])
@pytest.mark.parametrize("top_k", [0, 1, 40])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_matches_the_reference(top_k, top_p, min_p, device):
    rows = logits(4, device, seed=top_k)
    arguments = settings(
        4,
        device,
        temperature=[0.0, 0.5, 1.0, 2.0],
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        uniform=uniforms([top_k] * 4, range(4)).tolist(),
    )
    assert torch.equal(sample(rows, *arguments), sample_reference(rows, *arguments))


def test_top_k_keeps_the_k_largest_and_their_equals(device):
    row = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]], device=device)
    assert drawn(row, device, top_k=1) == {1}
    assert drawn(row, device, top_k=2) == {1, 2, 3}


def test_top_p_keeps_a_token_while_the_likelier_ones_hold_less(device):
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]], device=device).log()
    assert drawn(row, device, top_p=0.4) == {0}
    assert drawn(row, device, top_p=0.6) == {0, 1}
    assert drawn(row, device, top_p=0.9) == {0, 1, 2}


def test_top_p_counts_only_what_top_k_left(device):
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]], device=device).log()
    assert drawn(row, device, top_k=2, top_p=0.6) == {0}  # 0.5 of 0.8 is 0.625
    assert drawn(row, device, top_k=2, top_p=0.65) == {0, 1}


def test_min_p_is_relative_to_the_likeliest(device):
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]], device=device).log()
    assert drawn(row, device, min_p=0.2) == {0, 1, 2}
    assert drawn(row, device, min_p=1.0) == {0}


def test_draws_follow_the_probabilities(device):
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    count = 200
    numbers = uniforms([3] * count, range(count)).tolist()
    rows = probabilities.log().expand(count, -1).contiguous().to(device)
    tokens = sample(rows, *settings(count, device, uniform=numbers)).cpu()
    shares = torch.bincount(tokens, minlength=4) / count
    assert (shares - probabilities).abs().max() < 0.08


def test_the_extremes_of_uniform_stay_inside_the_kept_tokens(device):
    row = torch.full((2, 50), -40.0, device=device)
    row[:, [10, 20]] = 0.0
    options = settings(2, device, top_k=2, uniform=[0.0, 1.0 - 2.0**-24])
    assert sample(row, *options).tolist() == [10, 20]


def test_tokens_barred_by_minus_infinity_never_come_up(device):
    row = torch.full((1, 300), -float("inf"), device=device)
    row[0, [5, 299]] = torch.tensor([0.0, 1.0], device=device)
    assert drawn(row, device) == {5, 299}
    assert drawn(row, device, top_k=50, top_p=0.99) == {5, 299}


def test_a_row_does_not_depend_on_its_neighbours(device):
    rows = logits(5, device)
    options = {"temperature": [0.0, 1.0, 0.7, 1.0, 2.0], "top_k": [0, 0, 50, 900, 3]}
    together = sample(rows, *settings(5, device, top_p=0.9, **options))
    for row in range(5):
        own = {name: values[row] for name, values in options.items()}
        alone = sample(rows[row : row + 1], *settings(1, device, top_p=0.9, **own))
        assert alone.tolist() == together[row : row + 1].tolist()


@pytest.mark.parametrize("parts", [1, 4, 16])
def test_a_row_looked_at_in_parts_gives_the_same_tokens(parts, device, monkeypatch):
    monkeypatch.setattr(module, "sample_parts", lambda *_: parts)
    rows = logits(4, device, vocabulary=9000)
    rows[0, [5, 8999]] = 50.0
    rows[1, [8999, 4096]] = 50.0
    arguments = settings(4, device, temperature=[0.0, 0.0, 1.0, 0.7], top_p=0.9)
    assert sample(rows, *arguments).tolist() == sample_reference(rows, *arguments).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 9000, 9216])
def test_rows_that_are_not_finite_are_told_and_leave_the_others_alone(
    vocabulary, temperature, device
):
    rows = logits(6, device, vocabulary=vocabulary)
    arguments = settings(6, device, temperature=temperature)
    good = sample(rows, *arguments).tolist()
    rows[1, vocabulary - 2] = float("nan")
    rows[2] = float("nan")
    rows[3, 17] = float("inf")
    rows[4] = -float("inf")
    finite = torch.zeros(6, dtype=torch.bool, device=device)
    tokens = sample(rows, *arguments, finite=finite).tolist()
    assert finite.tolist() == [True, False, False, False, False, True]
    assert tokens[::5] == good[::5]
    assert all(0 <= token < vocabulary for token in tokens)


@pytest.mark.parametrize("vocabulary", [1, 63, 4096, 4097])
def test_takes_any_vocabulary(vocabulary, device):
    rows = logits(2, device, vocabulary=vocabulary)
    arguments = settings(2, device, top_p=0.9, uniform=[0.1, 0.99])
    assert torch.equal(sample(rows, *arguments), sample_reference(rows, *arguments))


def test_takes_no_rows(device):
    assert sample(logits(0, device), *settings(0, device)).shape == (0,)
