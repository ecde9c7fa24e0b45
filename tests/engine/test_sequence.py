"""What a sequence knows survives preemption; phases change only as they may."""

import pytest

from engine.protocol import Finish, Sampling, Submit, TokenLogprobs
from engine.request import Request
from engine.sequence import Phase, Sequence
from engine.step import DRAWN, Drawn


def request(limit: int = 5, **more: object) -> Request:
    fields = {"tokens": [1, 2, 3], "max_tokens": limit, **more}
    message = Submit("r1", "t", **fields)  # type: ignore[arg-type]
    return Request(
        submit=message, connection=0, serial=1, arrived=0.0, limit=limit, stops=frozenset({9, 8})
    )


def sequence(shared: Request | None = None) -> Sequence:
    shared = shared or request()
    choice = Sequence(number=1, request=shared, index=0, seed=7)
    shared.choices = [choice]
    return choice


@pytest.mark.parametrize(
    ("start", "stop", "tokens"),
    [(0, 3, [1, 2, 3]), (0, 5, [1, 2, 3, 4, 5]), (2, 4, [3, 4]), (3, 5, [4, 5]), (4, 5, [5])],
)
def test_known_tokens_run_from_the_prompt_into_the_output(
    start: int, stop: int, tokens: list[int]
) -> None:
    choice = sequence()
    choice.accept(4)
    choice.accept(5)
    assert choice.tokens(start, stop) == tokens


def test_a_stop_token_ends_it_without_joining_the_output() -> None:
    choice = sequence()
    assert choice.accept(4) is None
    assert choice.accept(9) is Finish.STOP
    assert (choice.output, choice.stop_token, choice.generated) == ([4], 9, 2)


def test_the_limit_ends_it_with_the_last_token() -> None:
    choice = sequence(request(limit=2))
    assert [choice.accept(4), choice.accept(5)] == [None, Finish.LENGTH]


def test_preemption_forgets_what_is_computed_and_keeps_what_is_known() -> None:
    choice = sequence()
    choice.pages = [0, 1]
    choice.plan(3, draws=True)
    assert choice.known == 4
    choice.advance(3, 0, Drawn(4))
    choice.accept(4)
    choice.forget()
    assert (choice.computed, choice.pages, choice.known, choice.output) == (0, [], 4, [4])
    choice.plan(4, draws=True)
    assert choice.advance(4, choice.life, Drawn(5)) == 0  # the prompt is not counted again


def test_prompt_logprobs_begun_before_preemption_are_gathered_anew() -> None:
    choice = sequence(request(prompt_logprobs=0))
    choice.advance(2, 0, Drawn(prompt_logprobs=[TokenLogprobs(-1)]))
    choice.forget()
    choice.advance(2, 0, Drawn(prompt_logprobs=[TokenLogprobs(-1)]))  # was under way
    choice.plan(3, draws=True)
    choice.advance(3, 1, Drawn(4, prompt_logprobs=[TokenLogprobs(-1), TokenLogprobs(-2)]))
    choice.accept(4)
    said = choice.say([4])
    assert said.prompt_logprobs == [TokenLogprobs(-1), TokenLogprobs(-2)]
    assert choice.say([5]).prompt_logprobs is None


def test_a_token_being_drawn_is_known_by_place_and_survives_preemption() -> None:
    choice = sequence(request(limit=2))
    choice.plan(3, draws=True)
    assert (choice.tokens(2, 4), choice.draw().position, choice.exhausted) == ([3, DRAWN], 1, False)
    choice.forget()
    choice.advance(3, 0, Drawn(4))
    assert choice.accept(4) is None
    assert (choice.tokens(2, 4), choice.known, choice.computed) == ([3, 4], 4, 0)
    choice.plan(4, draws=True)
    assert choice.exhausted


def test_stop_tokens_are_barred_only_before_min_tokens() -> None:
    choice = sequence(request(sampling=Sampling(min_tokens=1)))
    assert choice.draw().barred == (8, 9)
    choice.accept(4)
    assert choice.draw().barred == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [(Phase.FINISHED, Phase.RUNNING), (Phase.RUNNING, Phase.WAITING_ADAPTER)],
)
def test_an_unlawful_change_of_phase_is_a_bug(before: Phase, after: Phase) -> None:
    choice = sequence()
    choice.phase = before
    with pytest.raises(AssertionError, match=str(after)):
        choice.move(after)


def test_more_is_asked_for_once_per_grant_and_never_past_the_total() -> None:
    shared = request(limit=10, granted=4)
    assert shared.ask(ahead=2, step=100) is None
    shared.spent = 2
    assert shared.ask(ahead=2, step=100) == 10
    assert shared.ask(ahead=2, step=100) is None
    shared.grant(6)
    shared.spent = 5
    assert shared.ask(ahead=2, step=3) == 9


def test_a_grant_is_never_taken_back() -> None:
    shared = request(limit=10, granted=4)
    shared.grant(2)
    assert shared.granted == 4
    shared.grant(99)
    assert (shared.granted, shared.metered) == (10, False)
