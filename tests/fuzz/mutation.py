"""Inputs near what is valid: sound samples with something wrong in them."""

import json
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

TOKENS = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\r\n", b"\r\n--", b"--", b'"', b"\\", b"{", b"}", b"[",
    b"]", b":", b",", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400, b"null", b"true",
    b"\\ud800", b"__metadata__", b"data_offsets", b"content-disposition", b"filename*=utf-8''%00",
    b"=", b";",
    b"\x1b[31m", b" " * 64, b"../", b"(a+)+$", b".*",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**62, 2**64, 10**300, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\x00", "\ud800", "\u202e", "a" * 500, "(a+)+$", "(.*.*)*x", ".*", "[",
    [], [[]], {}, {"": ""}, ["q_proj"], [0, 4], [4, 0], [2**62, 2**63], ["q_proj", None], [1] * 40,
    "F32", "F64", "BF16", "LORA", "all-linear", "default", "eva", "pissa",
]  # fmt: skip
MOST_BYTES = 1 << 16


def mutated(random: Random, sample: bytes, others: Sequence[bytes]) -> bytes:
    """A few changes of bytes; sometimes none."""
    data = bytearray(sample)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(data) + 1)
        match random.randrange(7):
            case 0 if data:
                data[at % len(data)] = random.randrange(256)
            case 1 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 2:
                del data[at : at + random.choice((1, 1, 2, 8, 64, 4096))]
            case 3:
                data[at:at] = random.choice(TOKENS)
            case 4:
                piece = data[at : at + random.randrange(1, 64)]
                data[at:at] = piece * random.choice((1, 2, 16))
            case 5:
                other = random.choice(others)
                cut = random.randrange(len(other) + 1)
                data[at:] = other[cut:]
            case _:
                data[at:at] = random.randbytes(random.choice((1, 4, 16)))
    return bytes(data[:MOST_BYTES])


def mutated_json(random: Random, sample: Any) -> bytes:
    """Another value, key or nesting somewhere in it; then written as JSON."""
    value = json.loads(json.dumps(sample))
    for _ in range(random.choice((1, 1, 2, 4))):
        value = _changed(random, value)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _changed(random: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        match random.randrange(5):
            case 0:
                del value[key]
            case 1:
                value[str(random.choice(VALUES))] = value.pop(key)
            case 2:
                value[key] = _hostile(random)
            case 3:
                value[str(_hostile(random))] = _hostile(random)
            case _:
                value[key] = _changed(random, value[key])
        return value
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        value[at] = _changed(random, value[at])
        return value
    return _hostile(random)


def _hostile(random: Random) -> Any:
    """A value of its own each time: what is put into another must not hold it already."""
    return deepcopy(random.choice(VALUES))
