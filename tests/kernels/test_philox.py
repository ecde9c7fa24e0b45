import random

import pytest

from kernels.philox import philox, uniform, uniforms

ONES = 0xFFFFFFFF


# The known answers published with the generator's reference implementation (Random123).
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_gives_the_known_answers(counter, key, words):
    assert philox(counter, key) == words


def test_many_at_once_equal_one_at_a_time():
    source = random.Random(0)
    seeds = [source.getrandbits(64) for _ in range(257)]
    positions = [source.getrandbits(40) for _ in range(257)]
    expected = [uniform(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions).tolist() == expected


def test_numbers_lie_in_the_half_open_unit_interval_and_spread_over_it():
    numbers = uniforms([7] * 4096, range(4096))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.02


def test_negative_seeds_are_taken_modulo_two_to_the_64th():
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_no_pairs_make_no_numbers():
    assert uniforms([], []).shape == (0,)
