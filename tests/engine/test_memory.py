"""Whatever requests leave behind in an engine ends: it holds no more after twice as many.

What is counted are the objects that can be reached from the loop, however plain they are. So a
request that leaves one thing behind shows as a request each.
"""

from collections.abc import Callable

import pytest

from engine.counts import CountRecord
from engine.protocol import Retire
from tests.engine.harness import Harness, config
from tests.fakes.runner import build
from tests.reachable import reachable

MANY = 300


@pytest.fixture
def engine() -> Harness:
    """With room for everything: nothing is ever evicted for want of pages."""
    return Harness(
        config(max_num_batched_tokens=64), build(num_pages=400), record=CountRecord(None, kept=50)
    )


def finish(engine: Harness) -> None:
    """As ``run``, but nothing is checked or kept."""
    engine.core.step()
    while engine.core.book:
        engine.core.step()
    engine.core.outbox.take()


def held_after(engine: Harness, serve: Callable[[int], None], numbers: range) -> int:
    for number in numbers:
        serve(number)
        finish(engine)
        engine.parts.runner.plans.clear()
        engine.parts.host.requested.clear()
        engine.clock.advance(0.01)
    return reachable(engine.core)


def assert_flat(engine: Harness, serve: Callable[[int], None]) -> None:
    """Of as many requests again, not every second one leaves a thing."""
    first = held_after(engine, serve, range(MANY))
    then = held_after(engine, serve, range(MANY, 2 * MANY))
    assert then - first < MANY / 2


def test_a_prompt_that_is_known_already_leaves_nothing(engine: Harness) -> None:
    assert_flat(engine, lambda n: engine.submit(f"r{n}", [5] * 9, 2))


def test_an_adapter_that_is_there_already_leaves_nothing(engine: Harness) -> None:
    assert_flat(engine, lambda n: engine.submit(f"r{n}", [5] * 3, 2, adapter=f"a{n % 3}"))


def test_prompts_that_are_all_different_leave_nothing_once_the_pages_are_full(
    engine: Harness,
) -> None:
    def serve(number: int) -> None:
        engine.submit(f"r{number}", [number % 97, number // 97, *[7] * 20], 2)

    held_after(engine, serve, range(-200, 0))  # six pages each
    assert_flat(engine, serve)


def test_tenants_that_come_and_go_leave_nothing(engine: Harness) -> None:
    held_after(
        engine, lambda n: engine.submit(f"w{n}", [5], 2, tenant=f"early {n}"), range(MANY)
    )  # these have labels in the metrics
    assert_flat(engine, lambda n: engine.submit(f"r{n}", [5], 2, tenant=f"tenant {n}"))


def test_deadlines_that_were_kept_leave_nothing_before_they_are_due(engine: Harness) -> None:
    assert_flat(engine, lambda n: engine.submit(f"r{n}", [5], 2, deadline_ms=3_600_000))


def test_clients_that_leave_and_requests_that_are_refused_leave_nothing(engine: Harness) -> None:
    def serve(number: int) -> None:
        engine.submit(f"r{number}", [5] * 9, 50)
        engine.submit(f"too long {number}", [5] * 100, 2)
        engine.core.step()
        engine.core.step()
        engine.cancel(f"r{number}")

    assert_flat(engine, serve)


def test_adapters_that_are_retired_leave_nothing(engine: Harness) -> None:
    """Each was used once, with a prompt of whole pages."""

    def serve(number: int) -> None:
        digest = f"a{number % 7}"
        engine.submit(f"r{number}", [5] * 9, 2, adapter=digest)
        finish(engine)
        engine.tell(Retire(digest))
        engine.core.step()

    assert_flat(engine, serve)
