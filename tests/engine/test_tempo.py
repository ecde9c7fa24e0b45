"""Prompt tokens beside decodes: as many as fit in the time, learnt from the passes before."""

import pytest

from engine.tempo import EXTRA, LEAST, LOOK, SOON, Company, Tempo


def learnt(target_s: float | None = 0.025) -> Tempo:
    """Decodes take 5 ms, and each prompt token 0.1 ms more."""
    tempo = Tempo(target_s)
    tempo.took(0.005, decodes=4, prompt_tokens=0)
    tempo.took(0.015, decodes=4, prompt_tokens=100)
    return tempo


@pytest.mark.parametrize(
    ("tempo", "decodes"),
    [
        pytest.param(learnt(None), 4, id="no_target"),
        pytest.param(learnt(), 0, id="nobody_decodes"),
        pytest.param(Tempo(0.025), 4, id="nothing_is_known_yet"),
    ],
)
def test_there_is_no_limit_without_a_target_decodes_and_a_sample(
    tempo: Tempo, decodes: int
) -> None:
    assert tempo.prompt_tokens(decodes=decodes, most=2048) == 2048


def test_as_many_prompt_tokens_go_beside_decodes_as_fit() -> None:
    assert learnt().prompt_tokens(decodes=4, most=2048) == pytest.approx(200, abs=1)
    assert learnt().prompt_tokens(decodes=4, most=50) == 50


@pytest.mark.parametrize(
    ("sizes", "prompt_tokens"),
    [
        pytest.param((64, 128, 256), 124, id="little_of_256_would_be_filled"),
        pytest.param((64, 128, 220), 200, id="most_of_220_is"),
        pytest.param((204,), 200, id="all_of_204_is"),
        pytest.param((256,), 200, id="none_is_smaller"),
        pytest.param((64, 128), 200, id="no_pass_so_large_is_padded"),
    ],
)
def test_a_pass_that_would_fill_little_of_its_size_is_kept_to_the_one_below(
    sizes: tuple[int, ...], prompt_tokens: int
) -> None:
    tempo = Tempo(0.025, sizes)
    tempo.took(0.005, decodes=4, prompt_tokens=0)
    tempo.took(0.015, decodes=4, prompt_tokens=100)
    assert tempo.prompt_tokens(decodes=4, most=2048) == prompt_tokens


def test_a_prompt_always_gets_on_however_slow_it_is() -> None:
    assert learnt(0.001).prompt_tokens(decodes=4, most=2048) == LEAST


def test_costs_grow_at_once_and_fall_slowly() -> None:
    slower, faster = learnt(), learnt()
    slower.took(0.025, decodes=4, prompt_tokens=100)  # twice the cost
    assert slower.prompt_tokens(decodes=4, most=2048) == pytest.approx(100, abs=1)
    faster.took(0.010, decodes=4, prompt_tokens=100)  # half of it
    assert 200 < faster.prompt_tokens(decodes=4, most=2048) < 250


def test_one_stalled_pass_counts_as_four_times_what_is_usual() -> None:
    tempo = learnt(0.1)
    tempo.took(60.0, decodes=4, prompt_tokens=100)
    assert tempo.prompt_tokens(decodes=4, most=2048) == pytest.approx(237, abs=1)


def test_passes_of_a_prompt_alone_do_not_make_it_cheap_beside_decodes() -> None:
    tempo = learnt()
    tempo.took(0.001, decodes=0, prompt_tokens=1000)
    assert tempo.prompt_tokens(decodes=4, most=2048) == pytest.approx(200, abs=1)


def test_in_company_prompts_leave_passes_shorter_and_shortest_for_who_waits() -> None:
    tempo = learnt()
    lengths = [tempo.prompt_tokens(decodes=4, most=2048, company=company) for company in Company]
    assert lengths == pytest.approx([200, 187, 75], abs=1)  # of 25 ms, 23.75 and 12.5


def test_in_company_passes_grow_with_their_decodes_where_there_is_no_target() -> None:
    tempo = learnt(None)
    assert tempo.prompt_tokens(decodes=4, most=9999, company=Company.SEVERAL) == 1950  # 0.2 s
    for seconds in (0.02, 0.08, 0.3):
        tempo.took(seconds, decodes=99, prompt_tokens=0)
    assert tempo.prompt_tokens(decodes=99, most=9999, company=Company.SEVERAL) == 3000  # 0.6 s


def test_a_pass_without_prompts_shows_what_decodes_take_where_prompts_never_cease() -> None:
    tempo = Tempo(0.025)
    assert not tempo.looks(4)
    for _ in range(SOON):
        tempo.took(0.015, decodes=4, prompt_tokens=100)
    assert tempo.looks(4)
    assert not tempo.looks(0)
    tempo.took(0.005, decodes=4, prompt_tokens=0)
    assert not tempo.looks(4)
    for _ in range(SOON):
        tempo.took(0.015, decodes=4, prompt_tokens=100)
    assert not tempo.looks(4)
    assert tempo.looks(9)  # many more decode by now
    for _ in range(LOOK):
        tempo.took(0.015, decodes=4, prompt_tokens=100)
    assert tempo.looks(4)


def test_nothing_is_looked_for_where_nothing_is_limited() -> None:
    tempo = Tempo(None)
    for _ in range(SOON):
        tempo.took(0.015, decodes=4, prompt_tokens=100)
    assert not tempo.looks(4)
    assert tempo.looks(4, Company.SEVERAL)


def test_a_prompt_may_end_in_a_pass_by_some_tokens_more() -> None:
    assert learnt().extra() == pytest.approx(EXTRA * 250, abs=1)
    assert learnt(None).extra() == Tempo(0.025).extra() == 0
