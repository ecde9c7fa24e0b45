"""How many prompt tokens a pass takes beside decodes."""

import pytest

from engine.tempo import LEAST, SHARE, Tempo

TARGET_S = 0.025


def learnt(decode_s: float, token_s: float) -> Tempo:
    tempo = Tempo(TARGET_S)
    for _ in range(60):
        tempo.took(decode_s, decodes=8, prompt_tokens=0)
        tempo.took(decode_s + 500 * token_s, decodes=8, prompt_tokens=500)
    return tempo


def test_prompts_get_what_the_decodes_leave_of_the_target():
    tempo = learnt(decode_s=0.005, token_s=25e-6)
    assert tempo.prompt_tokens(decodes=8, most=8192) == pytest.approx(800, rel=0.05)


def test_a_full_batch_of_decodes_leaves_prompts_their_share():
    tempo = learnt(decode_s=0.022, token_s=25e-6)
    expected = SHARE * TARGET_S / 25e-6
    assert tempo.prompt_tokens(decodes=256, most=8192) == pytest.approx(expected, rel=0.05)


def test_tokens_that_cost_more_than_the_target_still_get_on():
    assert learnt(decode_s=0.005, token_s=0.01).prompt_tokens(decodes=1, most=8192) == LEAST


@pytest.mark.parametrize(("target", "decodes"), [(None, 8), (TARGET_S, 0)])
def test_without_a_target_or_a_decode_nothing_is_held_back(target, decodes):
    tempo = Tempo(target)
    tempo.took(1.0, decodes=8, prompt_tokens=10)
    assert tempo.prompt_tokens(decodes=decodes, most=8192) == 8192
