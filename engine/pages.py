"""The page pool: KV and adapters share equal pages, each page held by whoever counts on it.

A page is *free*, *held* by one or more owners (more than one where a prefix is shared), or
*resting*: held by nobody, but kept because what it holds may be of use again. Every holding counts
against a tenant. ``check()`` proves that every page is in exactly one state and counted as it is.
Allocating, sharing, keeping and freeing cost O(1) per page. Belongs to the engine loop's thread.
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
    tenant: str = ""  # whose share its pages count against; adapters are nobody's


class PagePool:
    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page freed last goes first
        self._holders = [0] * num_pages  # holders of each page
        self._kept = bytearray(num_pages)  # whether it rests instead of becoming free
        self._resting = 0
        self._held: dict[Owner, list[int]] = {}
        self._holdings: Counter[Kind] = Counter()
        self._tenants: Counter[str] = Counter()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def resting_pages(self) -> int:
        """Pages that only their content speaks for."""
        return self._resting

    def holdings(self, kind: Kind) -> int:
        """Pages counted once for each holder of this kind."""
        return self._holdings[kind]

    def share_of(self, tenant: str) -> int:
        """Pages the tenant's owners hold, counted once for each."""
        return self._tenants[tenant]

    def held(self, owner: Owner) -> Sequence[int]:
        """The owner's pages in the order it got them."""
        return self._held.get(owner, ())

    def shared(self, page: int) -> bool:
        """Several hold it."""
        return self._holders[page] > 1

    def rests(self, page: int) -> bool:
        return bool(self._kept[page]) and not self._holders[page]

    def allocate(self, count: int, owner: Owner) -> list[int] | None:
        """Take ``count`` free pages, appended to what the owner holds; None takes nothing."""
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        self._hold(pages, owner)
        return pages

    def share(self, pages: Sequence[int], owner: Owner) -> None:
        """Let another owner hold pages that somebody holds already, or that rest."""
        assert all(self._holders[page] or self._kept[page] for page in pages), (
            "only held and resting pages can be shared"
        )
        self._resting -= sum(not self._holders[page] for page in pages)
        self._hold(pages, owner)

    def swap(self, owner: Owner, index: int, page: int) -> None:
        """Hold ``page`` in place of the owner's page at ``index``: both hold the same."""
        pages = self._held[owner]
        old, pages[index] = pages[index], page
        assert self._holders[page] or self._kept[page], "only held and resting pages can be shared"
        self._resting -= not self._holders[page]
        self._holders[page] += 1
        self._let_go(old)

    def keep(self, page: int) -> None:
        """From now on it rests when its last holder leaves."""
        assert self._holders[page], "only a held page can be kept"
        assert not self._kept[page], "a page is kept once"
        self._kept[page] = True

    def drop(self, page: int) -> None:
        """Its content is of no more use: it is free once nobody holds it."""
        assert self._kept[page], "only a kept page can be dropped"
        self._kept[page] = False
        if not self._holders[page]:
            self._resting -= 1
            self._free.append(page)

    def free(self, owner: Owner) -> int:
        """Drop everything the owner holds. Returns how many pages became free."""
        pages = self._held.pop(owner, [])
        self._count(owner, -len(pages))
        before = len(self._free)
        for page in reversed(pages):
            self._let_go(page)
        return len(self._free) - before

    def trim(self, owner: Owner, count: int) -> None:
        """Drop the last ``count`` pages the owner got."""
        pages = self._held[owner]
        last = pages[len(pages) - count :]
        del pages[len(pages) - count :]
        self._count(owner, -count)
        for page in reversed(last):
            self._let_go(page)

    def check(self) -> None:
        """Raise AssertionError if a page leaked, is free and held, or is miscounted."""
        counted = Counter(page for pages in self._held.values() for page in pages)
        assert all(len(set(pages)) == len(pages) for pages in self._held.values()), "held twice"
        assert all(counted[page] == n for page, n in enumerate(self._holders)), "miscounted"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        used = {page for page in range(self.num_pages) if counted[page] or self._kept[page]}
        assert free == set(range(self.num_pages)) - used, "leaked"
        assert self._resting == sum(map(self.rests, range(self.num_pages))), "resting miscounted"
        kinds: Counter[Kind] = Counter()
        tenants: Counter[str] = Counter()
        for owner, pages in self._held.items():
            kinds[owner.kind] += len(pages)
            tenants[owner.tenant] += len(pages)
        assert all(kinds[kind] == self._holdings[kind] for kind in Kind), "kinds miscounted"
        assert +tenants == +self._tenants, "tenants miscounted"

    def _hold(self, pages: Sequence[int], owner: Owner) -> None:
        for page in pages:
            self._holders[page] += 1
        self._held.setdefault(owner, []).extend(pages)
        self._count(owner, len(pages))

    def _let_go(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if self._kept[page]:
            self._resting += 1
        else:
            self._free.append(page)

    def _count(self, owner: Owner, pages: int) -> None:
        self._holdings[owner.kind] += pages
        self._tenants[owner.tenant] += pages
        if not self._tenants[owner.tenant]:
            del self._tenants[owner.tenant]
