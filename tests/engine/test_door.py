"""Whoever could not be served in time is told so at once; a full queue is shared by tenants."""

import re

import pytest

from engine.pace import Pace
from engine.protocol import Finish, RefusalCode
from tests.engine.harness import Harness, config
from tests.fakes.runner import build


def busy(**more: object) -> Harness:
    """Two places, answers of ten passes of 0.1 s: two sequences a second start."""
    engine = Harness(
        config(max_num_seqs=2, fairness_quantum=4, **more), build(num_pages=200, page_tokens=4)
    )
    for i in range(24):
        engine.submit(f"flood{i}", [3], 10, tenant="flood")
    run(engine, 41)
    return engine


def run(engine: Harness, passes: int) -> None:
    for _ in range(passes):
        engine.step()
        engine.clock.advance(0.1)


def test_a_turn_that_would_come_after_the_deadline_is_refused_with_when_to_come_back() -> None:
    engine = busy()  # 16 of the flood wait: eight seconds
    engine.submit("late", [3], 10, tenant="flood", deadline_ms=5000)
    engine.submit("early", [3], 10, tenant="flood", deadline_ms=11_000)
    run(engine, 1)
    assert list(engine.refused) == [(0, "late")]
    refused = engine.refused[0, "late"]
    assert refused.code is RefusalCode.QUEUE_FULL
    told = re.fullmatch(r"its turn would come in about (.*) s; it has 5 s", refused.detail)
    assert told
    assert float(told[1]) == pytest.approx(7.5, rel=0.1)
    assert refused.retry_ms == pytest.approx(1000 * (float(told[1]) - 5), abs=100)
    engine.run()


def test_the_flood_of_one_tenant_is_no_reason_to_refuse_another() -> None:
    engine = busy()
    engine.submit("other", [3], 3, tenant="other", deadline_ms=2000)
    run(engine, 20)
    assert engine.finish("other") is Finish.LENGTH


def test_a_higher_priority_does_not_wait_for_lower_ones() -> None:
    engine = busy()
    engine.submit("first", [3], 3, tenant="flood", deadline_ms=2000, priority=1)
    engine.submit("last", [3], 3, tenant="other", deadline_ms=2000, priority=-1)
    run(engine, 20)
    assert engine.finish("first") is Finish.LENGTH
    assert engine.refused[0, "last"].code is RefusalCode.QUEUE_FULL


def test_the_operators_limit_holds_without_a_deadline() -> None:
    engine = busy(max_queue_wait_s=6.0)
    engine.submit("more", [3], 10, tenant="flood")
    run(engine, 1)
    assert "it has 6 s" in engine.refused[0, "more"].detail
    run(engine, 40)  # four seconds later the line is shorter
    engine.submit("again", [3], 10, tenant="flood")
    engine.run()
    assert engine.finish("again") is Finish.LENGTH


def test_nothing_is_refused_while_there_is_room_or_nothing_was_measured() -> None:
    engine = Harness(config(max_num_seqs=2))
    for i in range(9):
        engine.submit(f"r{i}", [3], 3, deadline_ms=1)
    engine.step()
    assert engine.refused == {}


def test_a_full_queue_makes_room_for_who_asks_for_less() -> None:
    engine = Harness(config(max_num_seqs=1, max_waiting=4))
    for i in range(6):
        engine.submit(f"flood{i}", [3], 3, tenant="flood")
    engine.step()
    assert list(engine.refused) == [(0, "flood5")]
    for i in range(3):
        engine.submit(f"other{i}", [3], 3, tenant="other")
    engine.step()
    # Two each are fair: the flood's newest went, and the other's third has no better claim.
    assert list(engine.refused) == [(0, "flood5"), (0, "flood4"), (0, "flood3"), (0, "other2")]
    engine.run()
    assert engine.finish("other1") is Finish.LENGTH


def test_a_place_is_not_taken_from_a_higher_priority() -> None:
    engine = Harness(config(max_num_seqs=1, max_waiting=2))
    for i in range(3):
        engine.submit(f"paid{i}", [3], 3, tenant="paid", priority=1)
    engine.submit("other", [3], 3, tenant="other")
    engine.step()
    assert list(engine.refused) == [(0, "other")]


def test_the_pace_is_that_of_the_time_in_which_somebody_waited() -> None:
    pace = Pace()
    for second in range(100):
        pace.passed(float(second), started=3, lacking=second < 50)
    assert pace.rate == pytest.approx(3, rel=0.02)
    pace.passed(1000.0, started=0, lacking=True)
    for second in range(1001, 1200):
        pace.passed(float(second), started=1, lacking=True)
    assert pace.rate == pytest.approx(1, rel=0.1)
