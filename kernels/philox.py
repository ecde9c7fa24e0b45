"""Philox4x32-10: random numbers as a function of (seed, position), the same on every machine.

The 64-bit seed is the key and the 64-bit position the low half of the counter. A draw takes the
top 24 bits of the first output word, so a uniform number is k / 2^24 for k in [0, 2^24).

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_MASK, _WHOLE = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_FACTOR_0, _FACTOR_1 = np.uint64(_MULTIPLIER_0), np.uint64(_MULTIPLIER_1)
_STEP_0, _STEP_1 = np.uint64(_WEYL_0), np.uint64(_WEYL_1)

Words = npt.NDArray[np.uint64]


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The block function on 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """One number in [0, 1). Seed and position are taken modulo 2^64."""
    counter = (position & _MASK, position >> 32 & _MASK, 0, 0)
    word = philox(counter, (seed & _MASK, seed >> 32 & _MASK))[0]
    return (word >> 8) / 2**24


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """``uniform`` of each pair, [B] float32 on the CPU."""
    k0, k1 = _words(seeds)
    c0, c1 = _words(positions)
    c2 = c3 = np.zeros_like(c0)
    low, half = np.uint64(_MASK), np.uint64(32)
    for _ in range(_ROUNDS):
        p0, p1 = _FACTOR_0 * c0, _FACTOR_1 * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + _STEP_0) & low, (k1 + _STEP_1) & low
    return torch.from_numpy((c0 >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24))


def _words(values: Sequence[int]) -> tuple[Words, Words]:
    whole = np.fromiter((value & _WHOLE for value in values), np.uint64, len(values))
    return whole & np.uint64(_MASK), whole >> np.uint64(32)
