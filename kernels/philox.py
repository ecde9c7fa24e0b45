"""Philox4x32-10: random numbers as a function of (seed, position), the same on every machine.

The 64-bit seed is the key and the 64-bit position the low half of the counter. A draw takes the
top 24 bits of the first output word, so a uniform number is k / 2^24 for k in [0, 2^24).

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from collections.abc import Sequence

import torch

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_MASK = 0xFFFFFFFF


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
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(_ROUNDS):
        high0, low0 = _product(_MULTIPLIER_0, c0)
        high1, low1 = _product(_MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return (c0 >> 8).to(torch.float32) * 2.0**-24


def _words(values: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    low = torch.tensor([value & _MASK for value in values], dtype=torch.int64)
    high = torch.tensor([value >> 32 & _MASK for value in values], dtype=torch.int64)
    return low, high


def _product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of a 32 x 32 bit product, by halves: int64 has no unsigned multiply."""
    upper, lower = a * (b >> 16), a * (b & 0xFFFF)
    high = (upper + (lower >> 16)) >> 16
    return high, (((upper & 0xFFFF) << 16) + lower) & _MASK
