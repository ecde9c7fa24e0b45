"""Tokens come out distributed as the target's, whatever the drafts were drawn from."""

import pytest
import torch

from kernels.reject import kept_of, reject

SAMPLES, V, K = 200_000, 6, 2
CRITICAL = 73.4  # chi-square of 36 cells: 35 degrees of freedom, one in 7 000


def chances(seed: int, *shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (2 * torch.randn((*shape, V), generator=random)).softmax(-1)


@pytest.fixture
def model() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p of the first token [V], p of the second by the first [V, V], and of the third."""
    return chances(1), chances(2, V), chances(3, V)


def drawn_from(weights: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.multinomial(weights, 1, generator=random).squeeze(1)


def chi_square(
    first: torch.Tensor, second: torch.Tensor, p1: torch.Tensor, p2: torch.Tensor
) -> float:
    counts = torch.bincount(first * V + second, minlength=V * V).double()
    expected = (p1.unsqueeze(1) * p2).reshape(-1).double() * len(first)
    return float(((counts - expected) ** 2 / expected).sum())


def sampled(
    model: tuple[torch.Tensor, ...], *, naive: bool, certain: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two tokens of many answers of which two tokens were drafted."""
    p1, p2, p3 = model
    random = torch.Generator().manual_seed(0)
    q1, q2 = chances(4).expand(SAMPLES, V), chances(5, V)
    a = drawn_from(q1, random)
    b = drawn_from(q2[a], random)
    drafts, target = torch.stack([a, b], 1), torch.stack([p1.expand(SAMPLES, V), p2[a], p3[b]], 1)
    source = None if certain else torch.stack([q1, q2[a]], 1)
    accept = torch.rand((SAMPLES, K), generator=random)
    uniform = torch.rand((SAMPLES, K + 1), generator=random)
    if naive:  # "accept if p >= q"
        q = torch.stack([q1, q2[a]], 1).gather(2, drafts.unsqueeze(2)).squeeze(2)
        p = target[:, :K].gather(2, drafts.unsqueeze(2)).squeeze(2)
        accept = (p < q).float()
    lengths = torch.full((SAMPLES,), K, dtype=torch.int32)
    tokens, kept = reject(target, drafts, lengths, source, accept, uniform)
    first, second = tokens[:, 0], tokens[:, 1]
    short = kept == 0  # one token came of it: a plain pass draws the next
    return first, torch.where(short, drawn_from(p2[first], random), second)


@pytest.mark.parametrize("certain", [False, True])
def test_the_target_distribution_is_unchanged(model: tuple[torch.Tensor, ...], certain: bool):
    first, second = sampled(model, naive=False, certain=certain)
    assert chi_square(first, second, *model[:2]) < CRITICAL


def test_accepting_where_p_exceeds_q_would_change_it(model: tuple[torch.Tensor, ...]):
    first, second = sampled(model, naive=True, certain=False)
    assert chi_square(first, second, *model[:2]) > 10 * CRITICAL


def test_keeping_a_draft_while_the_draw_is_the_draft_leaves_it_unchanged(
    model: tuple[torch.Tensor, ...],
):
    """What the engine does: one draw from p in each row, the bonus token's included."""
    p1, p2, p3 = model
    random = torch.Generator().manual_seed(7)
    a = torch.randint(V, (SAMPLES,), generator=random)
    b = torch.randint(V, (SAMPLES,), generator=random)
    rows = [p1.expand(SAMPLES, V), p2[a], p3[b]]
    drawn = torch.stack([drawn_from(row, random) for row in rows], 1)
    kept = kept_of(drawn, torch.stack([a, b], 1), torch.full((SAMPLES,), K))
    first = drawn[:, 0]
    second = torch.where(kept == 0, drawn_from(p2[first], random), drawn[:, 1])
    assert chi_square(first, second, p1, p2) < CRITICAL
    assert set(kept.tolist()) == {0, 1, 2}


def test_drafts_from_the_target_itself_are_all_kept_and_one_token_more():
    target = chances(1, 257, K + 1)
    random = torch.Generator().manual_seed(0)
    drafts = torch.stack([drawn_from(target[:, i], random) for i in range(K)], 1)
    accept, uniform = torch.rand((257, K)), torch.rand((257, K + 1))
    tokens, kept = reject(target, drafts, torch.full((257,), K), target[:, :K], accept, uniform)
    assert bool((kept == K).all())
    assert torch.equal(tokens[:, :K], drafts)
    assert int(tokens.min()) >= 0


def test_the_likeliest_tokens_keep_exactly_the_drafts_that_are_they():
    best = torch.tensor([[3, 1, 4], [3, 1, 4], [3, 1, 4], [3, 1, 4]])
    target = torch.nn.functional.one_hot(best, V).float()
    drafts = torch.tensor([[3, 1], [3, 0], [0, 1], [3, 1]])
    lengths = torch.tensor([2, 2, 2, 1])
    accept, uniform = torch.full((4, K), 0.999), torch.full((4, K + 1), 0.999)
    tokens, kept = reject(target, drafts, lengths, None, accept, uniform)
    assert kept.tolist() == [2, 1, 0, 1]
    assert tokens.tolist() == [[3, 1, 4], [3, 1, -1], [3, -1, -1], [3, 1, -1]]
    assert torch.equal(kept_of(best, drafts, lengths), kept)


def test_no_drafts_is_a_plain_draw():
    target, none = chances(1, 17, 1), torch.empty((17, 0), dtype=torch.int64)
    uniform = torch.rand((17, 1))
    tokens, kept = reject(target, none, torch.zeros(17), None, torch.empty((17, 0)), uniform)
    sums = target[:, 0].double().cumsum(1)
    expected = (sums <= sums[:, -1:] * uniform.double()).sum(1)
    assert torch.equal(tokens[:, 0], expected)
    assert int(kept.sum()) == 0
