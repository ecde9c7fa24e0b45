"""Adapters move disk → host → pages and out again, and what is in use stays where it is."""

import pytest

from engine.eviction import Dependants, Eviction
from engine.pages import Kind, Owner, PagePool
from engine.residency import Residency
from tests.fakes.runner import FakeHost, FakeMemory, Packed


class Store:
    def __init__(self, pages: int = 10, max_loads: int = 16) -> None:
        self.pool, self.memory, self.host = PagePool(pages), FakeMemory(), FakeHost()
        self.eviction, self.dependants = Eviction(self.pool), Dependants()
        self.residency: Residency[Packed] = Residency(
            self.pool, self.memory, self.host, eviction=self.eviction,
            dependants=self.dependants, max_loads=max_loads,
        )  # fmt: skip
        self.eviction.add(self.residency)

    def make_room(self, pages: int) -> bool:
        return self.eviction.make_room(pages)

    def bring(self, digest: str) -> int:
        """Load an adapter and leave it idle in pages, with somebody interested."""
        self.residency.join(digest)
        self.residency.seek(digest)
        assert self.residency.poll() == {}
        row = self.residency.pin(digest)
        assert row is not None
        self.residency.unpin(digest)
        return row

    def check(self) -> None:
        self.pool.check()
        self.residency.check()


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_cold_adapter_is_loaded_once_for_all_who_want_it(store: Store) -> None:
    store.host.delay = 2
    for _ in range(3):
        store.residency.join("a2")
        assert not store.residency.seek("a2")
    assert store.host.requested == ["a2"]
    for _ in range(3):
        assert store.residency.poll() == {}
    assert store.residency.seek("a2")
    assert store.residency.size("a2") == 2
    assert store.residency.pin("a2") == store.residency.pin("a2") == 0
    assert store.pool.holdings(Kind.ADAPTER) == 2
    store.check()


def test_a_failed_load_is_reported_once_and_may_be_tried_again(store: Store) -> None:
    store.host.missing.add("a2")
    store.residency.join("a2")
    store.residency.seek("a2")
    assert list(store.residency.poll()) == ["a2"]
    assert store.residency.poll() == {}
    store.residency.leave("a2")
    store.host.missing.clear()
    store.bring("a2")
    store.check()


def test_the_least_recently_used_idle_adapter_goes_first(store: Store) -> None:
    for digest in ("a3", "b3", "c3"):
        store.bring(digest)
    store.residency.pin("a3")
    store.residency.unpin("a3")
    assert store.make_room(4)
    assert store.residency.resident == ["a3", "c3"]
    store.check()


def test_one_that_nobody_waits_for_goes_before_one_somebody_does(store: Store) -> None:
    for digest in ("a3", "b3"):
        store.bring(digest)
    store.residency.leave("b3")
    assert store.make_room(7)
    assert store.residency.resident == ["a3"]


def test_a_pinned_adapter_is_never_evicted(store: Store) -> None:
    store.bring("a3")
    store.bring("b3")
    store.residency.pin("a3")
    assert not store.make_room(8)
    assert store.residency.resident == ["a3", "b3"]  # nothing is evicted in vain
    assert store.make_room(7)
    assert store.residency.resident == ["a3"]
    store.check()


def test_a_row_is_used_again_only_after_its_adapter_left(store: Store) -> None:
    rows = [store.bring(digest) for digest in ("a1", "b1", "c1")]
    assert rows == [0, 1, 2]
    store.make_room(8)
    assert store.residency.resident == ["b1", "c1"]
    assert store.bring("d1") == 0
    store.check()


def test_placing_evicts_idle_ones_or_waits(store: Store) -> None:
    store.bring("a6")
    store.residency.pin("a6")
    store.residency.join("b5")
    store.residency.seek("b5")
    store.residency.poll()
    assert store.residency.pin("b5") is None
    store.residency.unpin("a6")
    assert store.residency.pin("b5") is not None
    assert store.residency.resident == ["b5"]
    store.check()


def test_an_evicted_adapter_comes_back_by_itself(store: Store) -> None:
    store.bring("a2")
    store.make_room(10)
    assert store.residency.seek("a2")  # at once: it is in host memory
    assert store.residency.pin("a2") is not None
    assert (store.residency.loads, store.residency.evictions) == (2, 1)


def test_one_that_cannot_be_laid_out_gives_back_its_pages_and_row(store: Store) -> None:
    store.memory.unusable.add("a2")
    store.residency.join("a2")
    store.residency.seek("a2")
    store.residency.poll()
    assert store.residency.pin("a2") is None
    assert "laid out" in str(store.residency.poll()["a2"])
    assert store.pool.free_pages == 10
    store.check()


def test_loads_under_way_are_bounded_and_the_next_goes_when_one_lands() -> None:
    store = Store(max_loads=2)
    for digest in ("a1", "b1", "c1"):
        store.residency.join(digest)
        store.residency.seek(digest)
    assert store.host.requested == ["a1", "b1"]
    store.residency.poll()
    store.residency.pin("a1")
    store.residency.seek("c1")
    assert store.host.requested == ["a1", "b1", "c1"]


def test_a_prefetched_adapter_takes_free_pages_but_evicts_nobody() -> None:
    store = Store(pages=5)
    store.residency.prefetch("a3")
    store.residency.poll()
    assert store.residency.resident == ["a3"]
    store.residency.prefetch("b3")
    store.residency.poll()
    assert store.residency.resident == ["a3"]
    assert not store.residency.loading
    store.check()


def test_a_load_nobody_wants_any_more_is_let_go(store: Store) -> None:
    store.host.delay = 1
    store.residency.join("a2")
    store.residency.seek("a2")
    store.residency.leave("a2")
    store.pool.allocate(9, Owner(Kind.KV, 1))
    store.residency.poll()
    store.residency.poll()
    assert not store.residency.loading
    store.check()


def test_an_adapter_leaves_only_after_the_kv_that_depends_on_it(store: Store) -> None:
    store.bring("a3")
    store.bring("b3")
    store.dependants.add("a3")
    assert store.make_room(5)
    assert store.residency.resident == ["a3"]  # though it was used less recently
    assert store.residency.cheapest() is None
    store.dependants.remove("a3")
    assert store.make_room(10)
    assert store.residency.resident == []
    store.check()


def test_pages_a_pin_takes_away_are_those_not_pinned_already(store: Store) -> None:
    store.bring("a3")
    assert (store.residency.taken("a3"), store.residency.pages) == (3, 3)
    store.residency.pin("a3")
    assert (store.residency.taken("a3"), store.residency.pages) == (0, 0)
