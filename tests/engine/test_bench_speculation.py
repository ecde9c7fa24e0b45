import pytest

from engine.bench.speculation import Script, break_even
from engine.speculation.proposer import Ask


@pytest.mark.parametrize("drafts", [2, 4, 8])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_the_break_even_is_the_chance_at_which_tokens_a_second_are_equal(
    drafts: int, chance: float
) -> None:
    ratio = sum(chance**i for i in range(drafts + 1))
    assert break_even(ratio, drafts) == pytest.approx(chance, abs=1e-9)


def test_passes_that_take_longer_than_all_drafts_are_worth_never_pay() -> None:
    assert break_even(3.01, 2) is None
    assert break_even(3.0, 2) == pytest.approx(1.0)


def test_a_script_counts_what_was_kept_and_is_silent_once_an_answer_is_another() -> None:
    script = Script(count=2, right=True, answers={(1, 2): [3, 4, 5, 6, 7]})

    def drafts(*output: int) -> list[int]:
        ask = Ask(sequence=1, prompt=[1, 2], output=output, most=4, pages=[])
        return list(script.propose([ask])[1])

    assert drafts(3) == [4, 5]
    assert drafts(3, 4, 5, 6) == [7]
    assert (script.drafted, script.kept) == (2, 2)
    assert drafts(3, 4, 5, 6, 9) == []
    assert (script.drafted, script.kept) == (3, 2)
    script.right = False
    assert drafts(3) == [4 ^ 1, 5 ^ 1]


def test_a_script_is_silent_while_others_than_all_rows_decode() -> None:
    script = Script(count=2, rows=2, answers={(1,): [3, 4, 5], (2,): [6, 7, 8]})
    asks = [
        Ask(sequence=number, prompt=[number], output=[3 * number], most=4, pages=[])
        for number in (1, 2)
    ]
    assert script.propose(asks[:1]) == {}
    assert script.propose(asks) == {1: [4 ^ 1, 5 ^ 1], 2: [7 ^ 1, 8 ^ 1]}
