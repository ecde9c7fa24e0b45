"""What a request says about sampling changes its own row's logits, in the documented order."""

import math

import numpy as np
import pytest
import torch

from engine.protocol import Sampling
from engine.sampling import NOT_FINITE, TokenMasks, draw
from tests.engine.rig import draw as asked

LOGITS = [0.5, 2.0, -1.0, 1.9, 0.0, 1.0]


def drawn(*draws, logits=None):
    rows = torch.tensor([LOGITS] * len(draws)) if logits is None else logits
    return draw(rows, draws).read()


def logprobs(sampling, **facts):
    (result,) = drawn(asked(sampling, logprobs=6, **facts))
    return dict(result.logprobs.top)


def expected(*logits):
    return dict(enumerate(torch.tensor(logits).log_softmax(0).tolist()))


def test_temperature_zero_takes_the_most_likely_token():
    assert drawn(asked(Sampling(temperature=0.0)))[0].token == 1


def test_of_equal_logits_the_lowest_id_wins():
    (result,) = drawn(asked(), logits=torch.tensor([[1.0, 3.0, 3.0, 3.0]]))
    assert result.token == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    wants = Sampling(temperature=0.0, repetition_penalty=2.0)
    found = logprobs(wants, prompt=[1, 2], output=[1, 3])
    assert found == pytest.approx(expected(0.5, 1.0, -2.0, 0.95, 0.0, 1.0), abs=1e-6)


def test_frequency_counts_and_presence_does_not_and_prompts_are_free():
    wants = Sampling(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25)
    found = logprobs(wants, prompt=[0, 0, 5], output=[1, 1, 3])
    assert found == pytest.approx(expected(0.5, 0.75, -1.0, 1.15, 0.0, 1.0), abs=1e-6)


def test_logit_bias_adds_and_repeats_add_up():
    wants = Sampling(temperature=0.0, logit_bias=[(2, 4.0), (1, -100.0), (2, 1.0)])
    found = logprobs(wants)
    assert found == pytest.approx(expected(0.5, -98.0, 4.0, 1.9, 0.0, 1.0), abs=1e-5)


def test_every_row_has_its_own_bias_and_barred_tokens():
    wants = [Sampling(temperature=0.0, logit_bias=[(i, 50.0), (i, 50.0)]) for i in range(6)]
    draws = [asked(want, barred=(i,) if i % 2 else ()) for i, want in enumerate(wants)]
    assert [d.token for d in drawn(*draws)] == [0, 3, 2, 1, 4, 1]


def test_barred_tokens_are_never_drawn_even_with_a_bias():
    wants = Sampling(temperature=0.0, logit_bias=[(1, 100.0)])
    assert drawn(asked(wants, barred=(1, 3)))[0].token == 5
    for seed in range(30):
        assert drawn(asked(Sampling(), barred=(1, 3), seed=seed))[0].token not in (1, 3)


def test_penalties_touch_only_their_own_row():
    penal = Sampling(temperature=0.0, frequency_penalty=5.0, logit_bias=[(3, -9.0)])
    plain, penalised, after = drawn(
        asked(logprobs=6), asked(penal, output=[1], logprobs=6), asked(logprobs=6)
    )
    assert dict(plain.logprobs.top) == dict(after.logprobs.top)
    assert dict(plain.logprobs.top) == pytest.approx(expected(*LOGITS), abs=1e-6)
    assert penalised.token == 5


def test_logprobs_are_taken_before_temperature():
    assert logprobs(Sampling(temperature=5.0)) == pytest.approx(expected(*LOGITS), abs=1e-6)


def test_the_draw_depends_on_seed_and_position_alone():
    wants = Sampling(temperature=2.0)
    alone = drawn(asked(wants, seed=5, position=9))[0].token
    crowd = [asked(wants, seed=n, position=n) for n in range(6)]
    assert drawn(*crowd, asked(wants, seed=5, position=9))[-1].token == alone
    tokens = {drawn(asked(wants, seed=5, position=n))[0].token for n in range(40)}
    assert len(tokens) > 2


def test_draws_follow_the_probabilities():
    wants, rows = Sampling(temperature=1.0), 4000
    results = drawn(*[asked(wants, seed=n) for n in range(rows)])
    probability = torch.tensor(LOGITS).softmax(0).tolist()
    for token, p in enumerate(probability):
        share = sum(result.token == token for result in results) / rows
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / rows))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_fails_alone(bad):
    rows = torch.tensor([LOGITS] * 3)
    rows[1, 4] = bad
    before, failed, after = drawn(asked(), asked(Sampling(), logprobs=1), asked(), logits=rows)
    assert (before.token, after.token) == (1, 1)
    assert (failed.token, failed.logprobs, failed.failed) == (None, None, NOT_FINITE)


def masks_of(*rows, allowed):
    bits = sum(1 << token for token in allowed)
    return TokenMasks(np.asarray(rows, dtype=np.int32), np.asarray([[bits]], dtype=np.int32))


def test_a_mask_bars_all_but_its_tokens_whatever_a_bias_says():
    wants = Sampling(temperature=0.0, logit_bias=[(1, 100.0)])
    rows = torch.tensor([LOGITS] * 2)
    draws = [asked(wants, masked=True, logprobs=6), asked(wants, logprobs=6)]
    masked, free = draw(rows, draws, None, masks_of(0, -1, allowed=(2, 4))).read()
    assert (masked.token, free.token) == (4, 1)
    expect = torch.tensor([-1.0, 0.0]).log_softmax(0).tolist()
    assert dict(masked.logprobs.top) == pytest.approx({2: expect[0], 4: expect[1]}, abs=1e-6)
    assert len(free.logprobs.top) == 6


def test_a_masked_draw_takes_its_barred_tokens_from_the_mask_alone():
    """Where a grammar leaves only a barred token, that token comes."""
    draws = [asked(Sampling(temperature=0.0), masked=True, barred=(3,))]
    (result,) = draw(torch.tensor([LOGITS]), draws, None, masks_of(0, allowed=(3,))).read()
    assert result.token == 3


def test_masked_rows_still_fail_alone_when_not_finite():
    rows = torch.tensor([[math.nan] * 6, LOGITS])
    draws = [asked(Sampling(), masked=True)] * 2
    broken, sound = draw(rows, draws, None, masks_of(0, 0, allowed=(2,))).read()
    assert (broken.failed, sound.token) == (NOT_FINITE, 2)


def test_only_allowed_tokens_are_drawn_whatever_a_bias_says():
    wants = Sampling(temperature=0.0, allowed=[4, 2], logit_bias=[(1, 50.0)])
    found = drawn(asked(wants, logprobs=6), asked(Sampling(temperature=0.0)))
    assert [each.token for each in found] == [4, 1]
    assert [token for token, _ in found[0].logprobs.top] == [4, 2]
    for seed in range(20):
        assert drawn(asked(Sampling(allowed=[4, 2]), seed=seed))[0].token in (2, 4)


def test_where_all_that_is_allowed_is_barred_it_comes_all_the_same():
    """The end of a text, say, before min_tokens."""
    wants = Sampling(temperature=0.0, allowed=[3, 5])
    assert drawn(asked(wants, barred=(3,)))[0].token == 5
    assert drawn(asked(wants, barred=(3, 5)))[0].token == 3


@pytest.mark.parametrize(
    ("words", "output", "token"),
    [
        ([[1]], [], 3),
        ([[1], [3]], [], 5),
        ([[0, 1]], [], 1),
        ([[0, 1]], [2, 0], 3),
        ([[0, 1]], [0, 2], 1),
        ([[4, 0, 1]], [4, 0], 3),
        ([[4, 0, 1]], [0], 1),
        ([[4, 0, 1], [2, 3]], [4, 0], 3),
    ],
)
def test_a_bad_word_is_not_completed_whether_or_not_its_last_token_was_read(words, output, token):
    wants = Sampling(temperature=0.0, bad_words=words)
    read = asked(wants, output=output, position=len(output))
    assert drawn(read)[0].token == token
    if output:
        unread = asked(wants, output=output[:-1], position=len(output))
        last = torch.tensor([output[-1]])
        assert draw(torch.tensor([LOGITS]), [unread], last).read()[0].token == token
