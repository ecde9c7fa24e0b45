"""Rendezvous hashing, worked out beforehand: for each of many slots, which engine scores highest.

What is hashed falls into a slot, so a decision is one look into a list. An engine that joins takes
the slots in which it scores highest, one that leaves gives up its own, and no other slot changes:
the winners are the same in every gateway, whatever the order in which engines came.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

SLOTS = 1 << 16  # far more than engines, so that each has its share
MIX = np.uint32(0x9E3779B1)  # a prime near 2**32 over the golden ratio

S = TypeVar("S")
Keys = npt.NDArray[np.uint32]


@dataclass(slots=True)
class Winners(Generic[S]):
    seats: list[S | None] = field(default_factory=lambda: [None] * SLOTS)  # by slot
    _salts: Keys = field(default_factory=lambda: _mixed(np.arange(SLOTS, dtype=np.uint32)))
    _best: Keys = field(default_factory=lambda: np.zeros(SLOTS, np.uint32))  # score of the winner
    _owners: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(SLOTS, np.int64))

    def join(self, seat: S, key: int) -> None:
        scores = _scores(self._salts, np.uint32(key))
        won = np.flatnonzero(scores > self._best)
        self._best[won], self._owners[won] = scores[won], id(seat)
        for slot in won.tolist():
            self.seats[slot] = seat

    def leave(self, seat: S, others: Sequence[S], keys: Keys) -> None:
        """``others`` stay, with these keys."""
        lost = np.flatnonzero(self._owners == id(seat))
        if not others:
            self.seats, self._best[:] = [None] * SLOTS, 0
            return
        scores = _scores(self._salts[lost][:, None], keys[None, :])  # [slots, engines]
        places = scores.argmax(axis=1)
        self._best[lost] = scores[np.arange(len(lost)), places]
        for slot, place in zip(lost.tolist(), places.tolist(), strict=True):
            self.seats[slot] = others[place]
            self._owners[slot] = id(others[place])

    def scores(self, slot: int, keys: Keys) -> Keys:
        """Of everybody in one slot; none is 0."""
        return _scores(keys, self._salts[slot])


def _scores(some: Keys, others: Keys | np.uint32) -> Keys:
    return (some ^ others) * MIX | np.uint32(1)


def _mixed(numbers: Keys) -> Keys:
    """Neighbours are far apart."""
    for _ in range(2):
        numbers = (numbers ^ (numbers >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return numbers ^ (numbers >> np.uint32(16))
