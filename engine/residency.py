"""Which adapter is where: on disk, in host memory, or in pages of the pool.

Two seams keep this file free of torch: a ``HostCache`` brings adapters from disk into host
memory in its own threads, an ``AdapterMemory`` lays one out in pages of the pool.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from engine.errors import AdapterUnusable
from engine.eviction import ADAPTER_COST, ADAPTER_PAGE_COST, Dependants, Eviction, Rank
from engine.observer import Observer, Tier
from engine.pages import Kind, Owner, PagePool
from engine.step import NO_ADAPTER

FEW = 32  # stale entries that are not worth clearing away
P = TypeVar("P")  # an adapter in host memory, opaque here
P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


class HostCache(Protocol[P_co]):
    """The tier below the pool. Called from the engine loop; never blocks."""

    def request(self, digest: str) -> None:
        """Start bringing an adapter into host memory. Idempotent; retries failures of old."""

    def poll(self, digest: str) -> P_co | Exception | None:
        """The adapter, why it cannot be had, or None while it is on its way."""

    def holds(self, digest: str) -> bool:
        """Whether it is in host memory."""

    def drop(self, digest: str) -> None:
        """Give back the memory it takes."""


class AdapterMemory(Protocol[P_contra]):
    """Adapters inside the page pool. Belongs to the engine loop's thread."""

    def pages_for(self, packed: P_contra) -> int:
        """Whole pages it takes."""

    def place(self, row: int, packed: P_contra, pages: Sequence[int]) -> None:
        """Copy into ``pages`` and point table row ``row`` at them. Any row: capacity grows.

        Raises AdapterUnusable when this adapter cannot be laid out.
        """

    def clear(self, row: int) -> None:
        """Forget a row. No pass launched later refers to it until it is placed again."""


@dataclass(slots=True, eq=False)
class _Adapter(Generic[P]):
    digest: str
    interest: int = 0  # open sequences that name it
    pins: int = 0  # sequences in passes: it may not move
    loading: bool = False
    asked: float = 0.0  # when its load began, seconds
    source: Tier = Tier.DISK  # where it was then
    packed: P | None = None  # in host memory, waiting for pages
    size: int = 0  # pages, once known
    row: int = NO_ADAPTER  # while in pages
    uses: int = 0  # pins since it came into pages
    number: int = -1  # of its place on the shelf

    @property
    def idle(self) -> bool:
        """In pages, and free to leave them."""
        return self.row != NO_ADAPTER and not self.pins


class Residency(Generic[P]):
    """Moves adapters disk → host → pages, and out again; a ``Shelf`` of those not in use.

    An open sequence *joins* its adapter, so that several share one load; a running one *pins*
    it, so that neither its row nor its pages can be given away. At most ``max_loads`` adapters
    are on their way or waiting in host memory at a time. Belongs to the engine loop's thread.
    """

    def __init__(
        self,
        pool: PagePool,
        memory: AdapterMemory[P],
        cache: HostCache[P] | None,
        *,
        eviction: Eviction,
        dependants: Dependants,
        max_loads: int = 16,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer, self._clock = observer or Observer(), clock
        self._pool, self._memory, self._cache = pool, memory, cache
        self._eviction, self._dependants = eviction, dependants
        self._max_loads = max_loads
        self._adapters: dict[str, _Adapter[P]] = {}
        self._moving: dict[str, _Adapter[P]] = {}  # loading, or in host memory
        self._idle_pages = 0
        self._shelf: list[tuple[bool, float, int, str]] = []  # idle ones; stale ones among them
        self._numbers = count()
        self._rows: list[int] = []  # a heap of rows given back
        self._resident: dict[str, int] = {}  # digest → row
        self._failures: dict[str, Exception] = {}
        self.loads = 0
        self.evictions = 0

    @property
    def enabled(self) -> bool:
        """Whether there is a store to load adapters from."""
        return self._cache is not None

    @property
    def resident(self) -> list[str]:
        return list(self._resident)

    @property
    def count(self) -> int:
        """Adapters in pages."""
        return len(self._resident)

    @property
    def loading(self) -> bool:
        return bool(self._moving)

    @property
    def can_load(self) -> bool:
        """Whether another load may start."""
        return self.enabled and len(self._moving) < self._max_loads

    @property
    def pages(self) -> int:
        """Of adapters that are not in use."""
        return self._idle_pages

    def join(self, digest: str) -> None:
        self._observer.wanted(digest)
        adapter = self._adapter(digest)
        adapter.interest += 1
        if adapter.interest == 1 and adapter.idle:
            self._offer(adapter)

    def leave(self, digest: str) -> None:
        adapter = self._adapters[digest]
        adapter.interest -= 1
        if adapter.interest:
            return
        if adapter.idle:
            self._offer(adapter)
        elif not adapter.loading:
            self._forget_unless_resident(adapter)

    def prefetch(self, digest: str) -> None:
        """Bring it to host memory, and into pages if some are free; give way to real demand."""
        if self.enabled:
            self._start(self._adapter(digest))

    def seek(self, digest: str) -> bool:
        """True once it is in pages or could be put there; otherwise its load is under way."""
        adapter = self._adapters[digest]
        if adapter.row != NO_ADAPTER or adapter.packed is not None:
            return True
        self._start(adapter)
        return adapter.packed is not None

    def poll(self) -> dict[str, Exception]:
        """Take in finished loads. Returns the failures since the last call, by digest."""
        for adapter in [adapter for adapter in self._moving.values() if adapter.loading]:
            self._take(adapter)
        failures, self._failures = self._failures, {}
        return failures

    def size(self, digest: str) -> int:
        """Pages it takes. Known once ``seek`` was true."""
        return self._adapters[digest].size

    def placed(self, digest: str) -> bool:
        return digest in self._resident

    def tier(self, digest: str) -> Tier:
        if digest in self._resident:
            return Tier.DEVICE
        held = self._cache is not None and self._cache.holds(digest)
        return Tier.HOST if held else Tier.DISK

    def taken(self, digest: str) -> int:
        """Pages that could be evicted or are free, and will not be once it is pinned."""
        adapter = self._adapters[digest]
        return 0 if adapter.pins else adapter.size

    def pin(self, digest: str) -> int | None:
        """Put it into pages if it is not there, and keep it there. Returns its table row.

        None when there are no pages for it, or it cannot be laid out (``poll`` then says so).
        """
        adapter = self._adapters[digest]
        if adapter.row == NO_ADAPTER and not self._place(adapter):
            return None
        if not adapter.pins:
            self._idle_pages -= adapter.size
        adapter.pins += 1
        adapter.uses += 1
        return adapter.row

    def unpin(self, digest: str) -> None:
        adapter = self._adapters[digest]
        assert adapter.pins > 0, f"adapter {digest} is not pinned"
        adapter.pins -= 1
        if not adapter.pins:
            self._rest(adapter)

    def wanted(self, digest: str) -> bool:
        """An open sequence names it."""
        adapter = self._adapters.get(digest)
        return adapter is not None and adapter.interest > 0

    def retire(self, digest: str) -> None:
        """It is not to be used again. No open sequence names it."""
        self._offer_bare()
        adapter = self._adapters.get(digest)
        if adapter is not None and adapter.idle:
            self._evict(adapter)
        if self._cache is not None:
            self._cache.drop(digest)

    def cheapest(self) -> Rank | None:
        self._offer_bare()
        while self._shelf:
            wanted, worth, number, digest = self._shelf[0]
            adapter = self._adapters.get(digest)
            if adapter and adapter.number == number and adapter.idle:
                if not self._dependants.of(digest):
                    return wanted, worth
                adapter.number = -1  # offered again when its last dependant is gone
            heappop(self._shelf)
        return None

    def evict(self) -> None:
        digest = heappop(self._shelf)[3]
        self._evict(self._adapters[digest])

    def check(self) -> None:
        """Raise AssertionError if rows, pages or pins do not add up."""
        rows = [adapter.row for adapter in self._adapters.values() if adapter.row != NO_ADAPTER]
        assert sorted([*rows, *self._rows]) == list(range(len(rows) + len(self._rows))), "rows"
        assert len(rows) == len(self._resident), "a resident adapter is not known"
        for adapter in self._adapters.values():
            held = len(self._pool.held(Owner(Kind.ADAPTER, adapter.digest)))
            assert held == (adapter.size if adapter.row != NO_ADAPTER else 0), "adapter pages"
        idle = [adapter for adapter in self._adapters.values() if adapter.idle]
        assert self._idle_pages == sum(adapter.size for adapter in idle), "idle pages"

    def _adapter(self, digest: str) -> _Adapter[P]:
        return self._adapters.setdefault(digest, _Adapter(digest))

    def _start(self, adapter: _Adapter[P]) -> None:
        assert self._cache is not None, "no adapter is accepted without a store"
        known = adapter.digest in self._moving or adapter.row != NO_ADAPTER
        if known or len(self._moving) >= self._max_loads:
            return self._forget_unless_resident(adapter)
        adapter.source = self.tier(adapter.digest)
        self._cache.request(adapter.digest)
        adapter.loading, adapter.asked = True, self._clock()
        self._moving[adapter.digest] = adapter
        if adapter.source is Tier.HOST:  # it need not wait for the next pass
            self._take(adapter)

    def _take(self, adapter: _Adapter[P]) -> None:
        assert self._cache is not None
        loaded = self._cache.poll(adapter.digest)
        if loaded is None:
            return
        adapter.loading = False
        if isinstance(loaded, Exception):
            self._fail(adapter, loaded)
            return
        adapter.packed, adapter.size = loaded, self._memory.pages_for(loaded)
        self.loads += 1
        self._observer.loaded(adapter.digest, self._clock() - adapter.asked, adapter.source)
        if not adapter.interest:  # prefetched
            fits = adapter.size <= self._pool.free_pages
            if not (fits and self._place(adapter)):
                self._forget_unless_resident(adapter)

    def _place(self, adapter: _Adapter[P]) -> bool:
        assert adapter.packed is not None, "only a loaded adapter can be placed"
        if not self._eviction.make_room(adapter.size):
            return False
        owner = Owner(Kind.ADAPTER, adapter.digest)
        pages = self._pool.allocate(adapter.size, owner)
        assert pages is not None
        row = heappop(self._rows) if self._rows else len(self._resident)
        try:
            self._memory.place(row, adapter.packed, pages)
        except AdapterUnusable as error:
            self._pool.free(owner)
            heappush(self._rows, row)
            self._fail(adapter, error)
            return False
        adapter.row = self._resident[adapter.digest] = row
        adapter.packed, adapter.uses = None, 0
        del self._moving[adapter.digest]
        self._rest(adapter)
        return True

    def _rest(self, adapter: _Adapter[P]) -> None:
        self._idle_pages += adapter.size
        self._offer(adapter)

    def _offer(self, adapter: _Adapter[P]) -> None:
        """Put it on the shelf in its place: behind all others while somebody waits for it."""
        cost = ADAPTER_COST + ADAPTER_PAGE_COST * adapter.size
        worth = self._eviction.worth(cost, max(1, adapter.uses), max(1, adapter.size))
        adapter.number = next(self._numbers)
        entry = (adapter.interest > 0, worth, adapter.number, adapter.digest)
        if len(self._shelf) > 2 * len(self._adapters) + FEW:
            self._tidy()
        heappush(self._shelf, entry)

    def _tidy(self) -> None:
        """While there is room for all nobody takes from the shelf, and each use puts something on
        it."""
        known = self._adapters
        self._shelf = [
            entry
            for entry in self._shelf
            if (adapter := known.get(entry[3])) and adapter.number == entry[2] and adapter.idle
        ]
        heapify(self._shelf)

    def _offer_bare(self) -> None:
        """What lost the last page that was computed with it can be evicted again."""
        for digest in self._dependants.take_bare():
            if (bare := self._adapters.get(digest)) is not None and bare.idle:
                self._offer(bare)

    def _evict(self, adapter: _Adapter[P]) -> None:
        assert not adapter.pins, "a pinned adapter stays"
        self._memory.clear(adapter.row)
        heappush(self._rows, adapter.row)
        self._pool.free(Owner(Kind.ADAPTER, adapter.digest))
        del self._resident[adapter.digest]
        self._idle_pages -= adapter.size
        adapter.row = NO_ADAPTER
        self.evictions += 1
        self._observer.evicted(adapter.digest)
        if not adapter.interest:
            self._forget_unless_resident(adapter)

    def _fail(self, adapter: _Adapter[P], error: Exception) -> None:
        adapter.packed = None
        self._moving.pop(adapter.digest, None)
        self._failures[adapter.digest] = error
        self._forget_unless_resident(adapter)

    def _forget_unless_resident(self, adapter: _Adapter[P]) -> None:
        if adapter.row == NO_ADAPTER and not adapter.interest and not adapter.loading:
            self._moving.pop(adapter.digest, None)
            self._adapters.pop(adapter.digest, None)
