"""Which engine computed the beginning of which conversation last.

A beginning is known by hashes of its first 1, 2, 4… pages, each made of the one before and salted
with tenant and adapter, as the engines' own pages are. What is remembered is a hint: the engine
compares tokens. Two beginnings with one hash cost a wrong guess and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST = 1 << 17  # beginnings that are remembered
DEEPEST = 32  # pages; conversations that agree for longer are one
STRIDE = 4  # past the first page, of how many tokens one is looked at

S = TypeVar("S")


@dataclass(slots=True)
class Prefixes(Generic[S]):
    most: int = MOST
    _last: dict[int, S] = field(default_factory=dict)  # oldest first

    def keys(self, salt: int, tokens: Sequence[int], page_tokens: int) -> list[int]:
        """Of every beginning in whole pages, the longest first. The same in every gateway."""
        found: list[int] = []
        key, start, pages = salt, 0, 1
        # Of the last page a token is left to compute: it is nobody's beginning.
        while (end := pages * page_tokens) < len(tokens) and pages <= DEEPEST:
            key = hash((key, tuple(tokens[start : end : STRIDE if start else 1])))
            found.append(key)
            start, pages = end, pages * 2
        found.reverse()
        return found

    def known(self, keys: Sequence[int]) -> Iterator[S]:
        for key in keys:
            if (seat := self._last.get(key)) is not None:
                yield seat

    def note(self, keys: Sequence[int], seat: S) -> None:
        for key in keys:
            self._last.pop(key, None)
            self._last[key] = seat
        while len(self._last) > self.most:
            del self._last[next(iter(self._last))]
