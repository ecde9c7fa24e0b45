"""Which engine computed the beginning of which conversation last.

A beginning is known by hashes of its first 1, 2, 4… pages, each made of the one before and salted
with tenant and adapter, as the engines' own pages are. What is remembered is a hint: the engine
compares tokens. Two beginnings with one hash cost a wrong guess and nothing else.

Those noted longest ago are forgotten by the half: to take the first out of a dictionary again and
again is to walk past all that went before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST = 1 << 17  # beginnings that are remembered
DEEPEST = 32  # pages; conversations that agree for longer are one
STRIDE = 16  # past the first page, of how many tokens one is looked at: each may be a cache miss

S = TypeVar("S")


@dataclass(slots=True)
class Prefixes(Generic[S]):
    most: int = MOST
    _recent: dict[int, S] = field(default_factory=dict)
    _older: dict[int, S] = field(default_factory=dict)  # noted before those, or noted again since

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

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
        recent, older = self._recent, self._older
        last = (recent[key] if key in recent else older.get(key) for key in keys)
        return [seat for seat in last if seat is not None]

    def note(self, keys: Sequence[int], seat: S) -> None:
        for key in keys:
            self._recent[key] = seat
            if len(self._recent) * 2 >= self.most:
                self._older, self._recent = self._recent, {}
