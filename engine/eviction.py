"""What leaves the page pool when room is needed: one policy over KV prefixes and adapters.

Everything that rests in the pool has a *worth*: the cost to bring it back, times how often it was
of use, per page. The least worth goes first. Worth starts from the pool's *age*, the worth of what
was evicted last, so what was of use long ago grows cheap without being touched (greedy dual size
frequency, Cherkasova 1998). Dependants go before what they depend on: a prefix's pages from its
end, an adapter after all KV that was computed with it. Belongs to the engine loop's thread.
"""

from collections import Counter
from typing import Protocol

from engine.pages import PagePool

KV_PAGE_COST = 1.0  # to compute a page of tokens again: the unit of cost
ADAPTER_COST = 1.0  # to wait for an adapter at all
ADAPTER_PAGE_COST = 0.1  # to copy one page of an adapter from the host

Rank = tuple[bool, float]  # whether somebody waits for it, and its worth


class Shelf(Protocol):
    """One kind of things that rest in the pool."""

    @property
    def pages(self) -> int:
        """Pages that evicting everything would free."""

    def cheapest(self) -> Rank | None:
        """Of what ``evict`` would take; None when something else has to go before."""

    def evict(self) -> None:
        """Give the pages of the cheapest back to the pool."""


class Dependants:
    """How many pages of KV in the pool depend on each adapter."""

    def __init__(self) -> None:
        self._pages: Counter[str] = Counter()
        self._bare: list[str] = []

    def of(self, digest: str) -> int:
        return self._pages[digest]

    def add(self, digest: str) -> None:
        self._pages[digest] += 1

    def remove(self, digest: str) -> None:
        self._pages[digest] -= 1
        if not self._pages[digest]:
            del self._pages[digest]
            self._bare.append(digest)

    def take_bare(self) -> list[str]:
        """Adapters that lost their last since the last call."""
        bare, self._bare = self._bare, []
        return bare


class Eviction:
    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._shelves: list[Shelf] = []
        self._age = 0.0

    def add(self, shelf: Shelf) -> None:
        self._shelves.append(shelf)

    @property
    def pages(self) -> int:
        """Pages that are free or could be."""
        return self._pool.free_pages + sum(shelf.pages for shelf in self._shelves)

    def worth(self, cost: float, uses: int, pages: int) -> float:
        """Of something that begins to rest."""
        return self._age + cost * uses / pages

    def make_room(self, pages: int) -> bool:
        """Evict until ``pages`` are free; nothing is evicted in vain."""
        if self.pages < pages:
            return False
        while self._pool.free_pages < pages:
            self._evict_one()
        return True

    def _evict_one(self) -> None:
        ranked = [(rank, shelf) for shelf in self._shelves if (rank := shelf.cheapest())]
        (_, worth), shelf = min(ranked, key=lambda pair: pair[0])
        self._age = max(self._age, worth)
        shelf.evict()
