"""The order of those who wait: priorities, then tenants in turn, then arrival."""

from engine.sequence import Sequence
from engine.waiting import WaitingQueue
from tests.engine.test_sequence import Request, Submit


def waiter(name: str, tenant: str, serial: int, priority: int = 0) -> Sequence:
    message = Submit(name, tenant, [1], 1, priority=priority)
    shared = Request(
        submit=message, connection=0, serial=serial, arrived=0.0, limit=1, stops=frozenset()
    )
    return Sequence(number=serial, request=shared, index=0, seed=0)


def names(queue: WaitingQueue) -> list[str]:
    return [sequence.request.submit.request for sequence in queue]


def queue_of(*waiters: Sequence) -> WaitingQueue:
    queue = WaitingQueue()
    for sequence in waiters:
        queue.add(sequence)
    return queue


def test_a_tenants_flood_delays_only_itself() -> None:
    flood = [waiter(f"a{i}", "a", i) for i in range(5)]
    queue = queue_of(*flood, waiter("b0", "b", 10), waiter("c0", "c", 11))
    assert names(queue) == ["a0", "b0", "c0", "a1", "a2", "a3", "a4"]


def test_serving_a_tenant_puts_it_behind_the_others() -> None:
    first = waiter("a0", "a", 0)
    queue = queue_of(first, waiter("a1", "a", 1), waiter("b0", "b", 2))
    queue.serve(first)
    assert names(queue) == ["b0", "a1"]


def test_higher_priorities_go_first_whoever_asks() -> None:
    queue = queue_of(waiter("low", "a", 0), waiter("high", "b", 1, priority=5))
    assert names(queue) == ["high", "low"]


def test_one_that_comes_back_takes_its_old_place() -> None:
    old, new = waiter("old", "a", 0), waiter("new", "a", 1)
    queue = queue_of(new)
    queue.add(old)
    assert names(queue) == ["old", "new"]


def test_one_in_the_middle_can_leave() -> None:
    middle = waiter("a1", "a", 1)
    queue = queue_of(waiter("a0", "a", 0), middle, waiter("a2", "a", 2))
    queue.remove(middle)
    assert (names(queue), len(queue)) == (["a0", "a2"], 2)


def test_candidates_are_the_first_in_line() -> None:
    queue = queue_of(*(waiter(f"a{i}", "a", i) for i in range(9)))
    assert len(queue.candidates(4)) == 4
    assert queue_of().candidates(4) == []
