"""The page pool: KV and adapters share equal pages, each page held by whoever counts on it.

A page has one or more holders (more than one where a prefix is shared) and is free when it has
none. ``check()`` proves that every page is either free once or held exactly as counted.
Allocating, sharing and freeing cost O(1) per page. Belongs to the engine loop's thread.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KV = "kv"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    key: int | str  # a sequence's number or an adapter's digest


class PagePool:
    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page freed last goes first
        self._holders = [0] * num_pages  # holders of each page
        self._held: dict[Owner, list[int]] = {}
        self._holdings: Counter[Kind] = Counter()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def holdings(self, kind: Kind) -> int:
        """Pages counted once for each holder of this kind."""
        return self._holdings[kind]

    def held(self, owner: Owner) -> Sequence[int]:
        """The owner's pages in the order it got them."""
        return self._held.get(owner, ())

    def allocate(self, count: int, owner: Owner) -> list[int] | None:
        """Take ``count`` free pages, appended to what the owner holds; None takes nothing."""
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        self._hold(pages, owner)
        return pages

    def share(self, pages: Sequence[int], owner: Owner) -> None:
        """Let another owner hold pages that somebody holds already."""
        assert all(self._holders[page] for page in pages), "only held pages can be shared"
        self._hold(pages, owner)

    def free(self, owner: Owner) -> int:
        """Drop everything the owner holds. Returns how many pages became free."""
        pages = self._held.pop(owner, [])
        self._holdings[owner.kind] -= len(pages)
        before = len(self._free)
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)
        return len(self._free) - before

    def check(self) -> None:
        """Raise AssertionError if a page leaked, is free and held, or is miscounted."""
        counted = Counter(page for pages in self._held.values() for page in pages)
        assert all(len(set(pages)) == len(pages) for pages in self._held.values()), "held twice"
        assert all(counted[page] == n for page, n in enumerate(self._holders)), "miscounted"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert free == {page for page in range(self.num_pages) if not counted[page]}, "leaked"
        for kind in Kind:
            held = sum(len(p) for owner, p in self._held.items() if owner.kind is kind)
            assert held == self._holdings[kind], f"{kind} holdings miscounted"

    def _hold(self, pages: Sequence[int], owner: Owner) -> None:
        for page in pages:
            self._holders[page] += 1
        self._held.setdefault(owner, []).extend(pages)
        self._holdings[owner.kind] += len(pages)
