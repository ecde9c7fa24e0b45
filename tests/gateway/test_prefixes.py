"""What is remembered of beginnings is bounded, and most of what was noted lately is known."""

import random

import pytest

from gateway.fleet.prefixes import Prefixes

MOST = 1 << 10


@pytest.fixture
def keys() -> list[int]:
    drawn = random.Random(7)
    return [drawn.getrandbits(64) - (1 << 63) for _ in range(20 * MOST)]


def test_no_more_is_remembered_however_many_beginnings_there_were(keys):
    prefixes = Prefixes[str](most=MOST)
    prefixes.note(keys[: 10 * MOST], "engine")
    assert len(prefixes) == MOST
    prefixes.note(keys[10 * MOST :], "engine")
    assert len(prefixes) == MOST


def test_each_is_known_until_two_others_came_to_its_row(keys):
    prefixes, row = Prefixes[str](most=MOST), keys[0] & (MOST - 2)
    first, second, third = (row + n * MOST for n in range(1, 4))
    prefixes.note([first], "one")
    prefixes.note([second], "two")
    assert prefixes.known([first, second]) == ["one", "two"]
    prefixes.note([first], "three")  # it is the newer one again
    prefixes.note([third], "four")
    assert prefixes.known([third, first, second]) == ["four", "three"]


def test_most_of_what_was_noted_lately_is_known(keys):
    prefixes = Prefixes[str](most=MOST)
    prefixes.note(keys, "engine")
    assert len(prefixes.known(keys[-MOST // 4 :])) > 0.85 * MOST / 4


def test_nothing_is_known_at_first_and_nothing_of_what_was_never_noted(keys):
    prefixes = Prefixes[str](most=MOST)
    assert prefixes.known(keys[:10]) == []
    prefixes.note(keys[:100], "engine")
    assert prefixes.known(keys[100:200]) == []
