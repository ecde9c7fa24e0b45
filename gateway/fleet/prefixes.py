"""Which engine computed the beginning of which conversation last.

A beginning is known by hashes of its first 1, 2, 4… pages, each made of the one before and salted
with tenant and adapter, as the engines' own pages are. What is remembered is a hint: the engine
compares tokens. Two beginnings with one hash cost a wrong guess and nothing else.

All are in one table, made once: a beginning has a row of two places there, by its hash, and pushes
out the older one of the two. So what is held does not grow, and each costs the same. A tenth of
all is forgotten by when others were noted for a quarter of the places, a quarter by half of them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST = 1 << 18  # beginnings that are remembered: 4 MiB
DEEPEST = 32  # pages; conversations that agree for longer are one
STRIDE = 16  # past the first page, of how many tokens one is looked at: each may be a cache miss

S = TypeVar("S")


@dataclass(slots=True)
class Prefixes(Generic[S]):
    most: int = MOST  # a power of two
    _hashes: "array[int]" = field(default_factory=lambda: array("q"))
    _seats: list[S | None] = field(default_factory=list)

    def __len__(self) -> int:
        """How many are known."""
        return len(self._seats) - self._seats.count(None)

    def keys(self, salt: int, tokens: Sequence[int], page_tokens: int) -> list[int]:
        """Of every beginning in whole pages, the longest first. The same in every gateway."""
        found: list[int] = []
        key, start, pages = salt, 0, 1
        # Of the last page a token is left to compute: it is nobody's beginning.
        while (end := pages * page_tokens) < len(tokens) and pages <= DEEPEST:
            key = hash((key, tuple(tokens[start : end : STRIDE if start else 2])))
            found.append(key)
            start, pages = end, pages * 2
        found.reverse()
        return found

    def known(self, keys: Sequence[int]) -> list[S]:
        """Who computed them, of the longest first."""
        if not self._seats:
            return []
        found = [self._seats[place] for key in keys if (place := self._place(key)) is not None]
        return [seat for seat in found if seat is not None]

    def note(self, keys: Sequence[int], seat: S) -> None:
        hashes, seats = self._hashes, self._seats
        if not seats:  # where nothing is handed over nothing is noted
            hashes.frombytes(bytes(8 * self.most))
            seats += [None] * self.most
        for key in keys:
            newer = key & (self.most - 2)
            if hashes[newer] != key:
                hashes[newer + 1], seats[newer + 1] = hashes[newer], seats[newer]
                hashes[newer] = key
            seats[newer] = seat

    def _place(self, key: int) -> int | None:
        newer = key & (self.most - 2)
        if self._hashes[newer] == key:
            return newer
        return newer + 1 if self._hashes[newer + 1] == key else None
