"""The order of those who wait: priorities, then the least served tenant, then due time."""

from engine.fairness import Fairness
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


def queue_of(*waiters: Sequence, fairness: Fairness | None = None) -> WaitingQueue:
    fairness = fairness or Fairness(quantum=0)
    queue = WaitingQueue(fairness)
    for sequence in waiters:
        fairness.enter(sequence.request.submit.tenant)
        queue.add(sequence)
    return queue


def test_a_tenants_flood_delays_only_itself() -> None:
    flood = [waiter(f"a{i}", "a", i) for i in range(5)]
    queue = queue_of(*flood, waiter("b0", "b", 10), waiter("c0", "c", 11))
    assert names(queue) == ["a0", "b0", "c0", "a1", "a2", "a3", "a4"]


def test_the_tenant_served_least_goes_first() -> None:
    fairness = Fairness(quantum=0)
    queue = queue_of(waiter("a0", "a", 0), waiter("b0", "b", 1), fairness=fairness)
    fairness.charge("a", 5)
    assert names(queue) == ["b0", "a0"]
    fairness.charge("b", 6)
    assert names(queue) == ["a0", "b0"]


def test_equal_turns_are_those_within_a_quantum_of_the_first_and_its_priority() -> None:
    fairness = Fairness(quantum=3)
    flood = [waiter(f"a{i}", "a", i) for i in range(9)]  # a token each
    queue = queue_of(*flood, waiter("low", "b", 10, priority=-1), fairness=fairness)
    assert [s.request.submit.request for s in queue.equals(32)] == ["a0", "a1", "a2", "a3"]
    queue.remove(flood[1])  # an equal one is served: the head still fixes who is equal to it
    assert [s.request.submit.request for s in queue.equals(32)] == ["a0", "a2", "a3"]


def test_within_a_tenant_the_earlier_deadline_goes_first_and_nobody_waits_for_ever() -> None:
    patient, urgent = waiter("patient", "a", 0), waiter("urgent", "a", 1)
    urgent.request.deadline = 5.0
    late = waiter("late", "a", 2)
    late.request.arrived, late.request.deadline = 59.0, 64.0
    assert names(queue_of(patient, urgent, late)) == ["urgent", "patient", "late"]


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
