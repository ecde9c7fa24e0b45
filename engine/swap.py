"""KV of sequences that had to yield, kept in host memory where that is cheaper than computing it.

What others hold of its pages stays where it is, and so does what rests of them while nobody needs
the room; only the rest is copied. When the sequence runs again it shares what is still there,
gets the copies back, and goes on where it was. If too little is still there it is computed again.
Belongs to the engine loop's thread.
"""

from collections.abc import Sequence as View
from dataclasses import dataclass
from typing import Protocol

from engine.observer import Observer
from engine.sequence import Sequence


class PageSwap(Protocol):
    """Host memory for so many pages. Called from the engine loop; never waits for a copy.

    A copy takes effect after the passes launched so far that touch its pages, and before those
    launched later, so pages and slots may be given away as soon as it was asked for.
    """

    @property
    def slots(self) -> int: ...

    @property
    def page_s(self) -> float:
        """Seconds that a page takes one way."""
        ...

    def out(self, pages: View[int], slots: View[int]) -> None: ...

    def back(self, slots: View[int], pages: View[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one sequence."""

    first: int  # index of the first of its pages that is
    slots: View[int]
    tokens: int  # whose KV it had


class Swap:
    """``memory``: None where nothing is kept."""

    def __init__(
        self, memory: PageSwap | None, *, page_tokens: int, observer: Observer | None = None
    ) -> None:
        self._memory, self._page_tokens = memory, page_tokens
        self._observer = observer or Observer()
        self._free = list(range(memory.slots))[::-1] if memory else []
        self._kept: dict[int, Kept] = {}  # by sequence number

    @property
    def used(self) -> int:
        """Slots."""
        return sum(len(kept.slots) for kept in self._kept.values())

    def of(self, sequence: Sequence) -> Kept | None:
        return self._kept.get(sequence.number)

    def keep(self, sequence: Sequence, *, first: int, token_s: float) -> bool:
        """Copy a running sequence's pages from index ``first`` on, if that is cheaper than to
        compute their tokens at ``token_s`` each, which is 0 where nobody knows yet."""
        tokens = sequence.computed - first * self._page_tokens
        pages = sequence.pages[first : -(-sequence.computed // self._page_tokens)]
        if self._memory is None or not 0 < len(pages) <= len(self._free):
            return False
        if 2 * self._memory.page_s * len(pages) >= token_s * tokens:
            return False
        slots = [self._free.pop() for _ in pages]
        self._memory.out(pages, slots)
        self._kept[sequence.number] = Kept(first, slots, sequence.computed)
        self._observer.swapped(out=len(pages), used=self.used)
        return True

    def bring(self, sequence: Sequence, pages: View[int], start: int) -> int:
        """Fill a sequence's pages from index ``start`` on. Returns how many tokens it then has."""
        assert self._memory is not None, "nothing was kept"
        kept = self._kept.pop(sequence.number)
        slots = kept.slots[start - kept.first :]
        self._memory.back(slots, pages[start : start + len(slots)])
        self._free += reversed(kept.slots)
        self._observer.swapped(back=len(slots), used=self.used)
        return kept.tokens

    def drop(self, sequence: Sequence) -> None:
        """It needs no more of it."""
        if kept := self._kept.pop(sequence.number, None):
            self._free += reversed(kept.slots)
            self._observer.swapped(used=self.used)

    def check(self) -> None:
        """Raise AssertionError if a slot leaked or is used twice."""
        held = [slot for kept in self._kept.values() for slot in kept.slots]
        slots = self._memory.slots if self._memory else 0
        assert sorted([*held, *self._free]) == list(range(slots)), "slots"
