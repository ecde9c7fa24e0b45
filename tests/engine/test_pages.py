"""The page pool never leaks a page, and never gives one away twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pages import Kind, Owner, PagePool

A, B = Owner(Kind.KV, 1), Owner(Kind.ADAPTER, "d1")


def test_allocates_distinct_pages_and_all_or_nothing() -> None:
    pool = PagePool(5)
    first, second = pool.allocate(3, A), pool.allocate(2, B)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.allocate(1, A) is None
    assert pool.held(A) == first
    pool.check()


def test_freeing_returns_everything_an_owner_holds() -> None:
    pool = PagePool(5)
    pool.allocate(2, A)
    pool.allocate(1, A)
    assert pool.free(A) == 3
    assert pool.free(A) == 0
    assert pool.free_pages == 5
    pool.check()


def test_a_shared_page_is_free_only_after_its_last_holder() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2, A)
    assert pages is not None
    pool.share(pages[:1], Owner(Kind.KV, 2))
    assert pool.free(A) == 1
    pool.check()
    assert pool.free(Owner(Kind.KV, 2)) == 1
    assert pool.free_pages == 4


def test_a_free_page_cannot_be_shared() -> None:
    with pytest.raises(AssertionError, match="only held and resting"):
        PagePool(2).share([0], A)


def test_holdings_are_counted_by_kind() -> None:
    pool = PagePool(9)
    pool.allocate(2, A)
    pool.allocate(3, B)
    assert (pool.holdings(Kind.KV), pool.holdings(Kind.ADAPTER)) == (2, 3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda p: p._free.append(p._free[0]), "free twice", id="free_twice"),
        pytest.param(lambda p: p._free.pop(), "leaked", id="leaked"),
        pytest.param(lambda p: p._free.append(p.held(A)[0]), "leaked", id="held_and_free"),
        pytest.param(lambda p: p._held[A].append(p.held(A)[0]), "held twice", id="held_twice"),
        pytest.param(lambda p: p._held.pop(A), "miscounted", id="owner_lost"),
    ],
)
def test_check_finds_what_is_wrong(spoil: object, words: str) -> None:
    pool = PagePool(6)
    pool.allocate(2, A)
    spoil(pool)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=words):
        pool.check()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7), st.booleans()), max_size=60))
def test_any_sequence_of_calls_leaves_the_pool_sound(calls: list[tuple[int, int, bool]]) -> None:
    pool = PagePool(17)
    for owner, count, release in calls:
        if release:
            pool.free(Owner(Kind.KV, owner))
        else:
            free = pool.free_pages
            taken = pool.allocate(count, Owner(Kind.KV, owner))
            assert (taken is None) == (count > free)
        pool.check()
