from collections.abc import Sequence

from engine.speculation.ngram import ENTERED, NgramProposer
from engine.speculation.proposer import Ask


def proposer(tokens: int = 3, shortest: int = 2, longest: int = 4) -> NgramProposer:
    return NgramProposer(tokens=tokens, lookup_min=shortest, lookup_max=longest)


def drafts(
    found: NgramProposer, prompt: Sequence[int], output: Sequence[int] = (), *, most: int = 3
) -> list[int]:
    ask = Ask(sequence=1, prompt=prompt, output=output, most=most, pages=[])
    return list(found.propose([ask]).get(1, ()))


def test_what_followed_the_last_tokens_before_is_drafted() -> None:
    assert drafts(proposer(), [1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]
    assert drafts(proposer(), [1, 2, 3, 4, 5, 9, 1, 2], most=1) == [3]
    assert drafts(proposer(), [1, 2, 3, 4], [5, 9, 1, 2]) == [3, 4, 5]


def test_nothing_is_drafted_where_nothing_came_before() -> None:
    assert drafts(proposer(), [1, 2, 3, 4, 5, 9, 2, 1]) == []
    assert drafts(proposer(), [1]) == []
    assert drafts(proposer(), [1, 2]) == []


def test_the_longest_run_in_common_is_taken_and_of_equals_the_latest() -> None:
    early, late = [7, 1, 2, 30, 31, 32], [8, 1, 2, 40, 41, 42]
    assert drafts(proposer(), [*early, *late, 7, 1, 2]) == [30, 31, 32]
    assert drafts(proposer(), [*early, *late, 6, 1, 2]) == [40, 41, 42]
    assert drafts(proposer(longest=2), [*early, *late, 7, 1, 2]) == [40, 41, 42]


def test_a_run_that_repeats_is_followed_to_the_end_of_the_drafts() -> None:
    assert drafts(proposer(), [5, 6] * 6) == [5, 6, 5]
    assert drafts(proposer(), [5] * 9) == [5, 5, 5]


def test_output_is_entered_as_it_comes_and_forgotten_with_its_sequence() -> None:
    found, output = proposer(), [4, 5, 6]
    assert drafts(found, [1, 2, 3], output) == []
    output += [7, 1, 2]
    assert drafts(found, [1, 2, 3], output) == [3, 4, 5]
    output += [3, 4]
    assert drafts(found, [1, 2, 3], output) == [5, 6, 7]
    found.forget(1)
    found.forget(2)
    assert drafts(found, [9, 9, 9], [1, 2]) == []


def test_sequences_share_what_is_entered_in_one_turn() -> None:
    found = proposer()
    long = [*range(10, 10 + ENTERED // 2)] * 2
    asks = [Ask(sequence=n, prompt=long, output=[], most=3, pages=[]) for n in range(3)]
    assert list(found.propose(asks)) == [0]
    assert list(found.propose(asks)) == [0, 1]
    assert list(found.propose(asks)) == [0, 1, 2]


def test_a_long_prompt_is_entered_in_parts() -> None:
    found, prompt = proposer(), [*range(10, 20 + ENTERED), 1, 2, 3, 4, 5, 9, 1, 2]
    assert drafts(found, prompt) == []
    assert drafts(found, prompt) == [3, 4, 5]
