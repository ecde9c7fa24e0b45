"""Counters of service: what raises them, and who is lifted to whom."""

from engine.fairness import REMEMBERED, Fairness


def waiting(*tenants: str) -> Fairness:
    """Each has one sequence that waits."""
    fairness = Fairness(quantum=0)
    for tenant in tenants:
        fairness.enter(tenant)
        fairness.wait(tenant)
    return fairness


def test_service_is_divided_by_the_weight_and_the_latest_weight_counts() -> None:
    fairness = Fairness(quantum=0)
    fairness.enter("a", 2.0)
    fairness.charge("a", 10)
    fairness.enter("a", 5.0)
    fairness.charge("a", 10)
    assert fairness["a"] == 7.0


def test_one_who_is_always_there_but_never_waits_saves_nothing_up() -> None:
    fairness = waiting("modest", "busy", "busier")
    fairness.go("modest")  # runs, and stays open
    fairness.charge("busy", 100)
    fairness.charge("busier", 300)
    fairness.enter("modest")
    assert fairness["modest"] == 100


def test_one_who_waits_keeps_what_it_is_owed() -> None:
    fairness = waiting("owed", "busy")
    fairness.charge("busy", 100)
    fairness.enter("owed")
    assert fairness["owed"] == 0


def test_nobody_is_lowered_by_arriving() -> None:
    fairness = waiting("served", "other")
    fairness.go("served")
    fairness.charge("served", 50)
    fairness.enter("served")
    assert fairness["served"] == 50


def test_where_nobody_waits_the_last_who_did_is_the_measure() -> None:
    fairness = waiting("modest", "busy")
    fairness.go("modest")
    fairness.go("busy")
    fairness.charge("busy", 80)
    fairness.enter("modest")
    assert fairness["modest"] == 80


def test_one_that_had_to_yield_waits_again_without_being_lifted() -> None:
    fairness = waiting("yields", "busy")
    fairness.go("yields")
    fairness.charge("busy", 100)
    fairness.wait("yields")
    assert fairness["yields"] == 0


def test_leaving_and_coming_back_is_no_better_than_staying() -> None:
    fairness = waiting("comes", "stays")
    fairness.go("comes")
    fairness.charge("comes", 70)
    fairness.leave("comes")
    fairness.charge("stays", 30)
    fairness.enter("comes")
    assert fairness["comes"] == 70
    fairness.enter("new")
    assert fairness["new"] == 30


def test_the_least_deserving_are_those_within_a_quantum_of_the_most_served() -> None:
    fairness = Fairness(quantum=10)
    for tenant, cost in (("a", 0), ("b", 20), ("c", 30)):
        fairness.enter(tenant)
        fairness.wait(tenant)
        fairness.charge(tenant, cost)
    assert fairness.least_deserving({"a", "b", "c"}) == {"b", "c"}


def test_of_the_absent_only_the_most_served_are_remembered_once_there_are_too_many() -> None:
    fairness = Fairness(quantum=0.0)
    fairness.enter("stays")
    fairness.wait("stays")
    for number in range(REMEMBERED + REMEMBERED // 5):
        fairness.enter(f"t{number}")
        fairness.charge(f"t{number}", 1.0 + number)
        fairness.leave(f"t{number}")
    known = [n for n in range(REMEMBERED + REMEMBERED // 5) if fairness.entry(f"t{n}") > 0]
    assert 0.9 * REMEMBERED <= len(known) <= REMEMBERED + 1
    assert known == list(range(known[0], known[0] + len(known)))  # the last, who were served most
