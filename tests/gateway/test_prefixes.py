"""What is remembered of beginnings is bounded, and it is the last that was noted."""

from gateway.fleet.prefixes import Prefixes


def test_no_more_is_remembered_however_many_beginnings_there_were():
    prefixes = Prefixes[str](most=64)
    sizes = []
    for number in range(64 * 20):
        prefixes.note([number], "engine")
        sizes.append(len(prefixes))
    assert max(sizes[64:128]) == max(sizes[-64:]) <= 64


def test_the_last_half_is_always_known_and_the_first_are_forgotten():
    prefixes = Prefixes[str](most=64)
    for number in range(1000):
        prefixes.note([number], f"engine {number}")
        kept = range(max(0, number - 31), number + 1)
        assert prefixes.known(kept) == [f"engine {each}" for each in kept]
    assert prefixes.known(range(1000 - 64)) == []


def test_a_beginning_that_is_noted_again_stays_and_means_the_last_engine():
    prefixes = Prefixes[str](most=64)
    for number in range(1000):
        prefixes.note([-1, number], "first" if number < 500 else "second")
    assert prefixes.known([-1]) == ["second"]
