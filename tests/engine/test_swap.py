"""Whoever yields comes back with the same tokens, and with its KV where that is cheaper."""

import pytest

from engine.sequence import Phase
from tests.engine.harness import Harness, config
from tests.fakes.runner import alone, build

PROMPT = [7, 8, 9, 10, 11]


def squeezed(
    *, slots: int = 50, page_s: float = 0.0, ahead: bool = False, **more: object
) -> Harness:
    """Two sequences that need twelve pages of four tokens each at their ends; there are sixteen."""
    of = Harness(
        config(max_num_batched_tokens=64, **more), build(num_pages=16, slots=slots, ahead=ahead)
    )
    of.parts.swap.page_s = page_s
    of.parts.runner.passes = lambda: of.clock.advance(0.01)
    for i in range(2):
        of.submit(f"r{i}", [*PROMPT, i + 3], 40, tenant=f"t{i}", seed=i)
    return of


def computed(of: Harness) -> int:
    return sum(plan.tokens for plan in of.parts.runner.plans)


def expect_all(of: Harness) -> None:
    for i in range(2):
        assert of.tokens(f"r{i}") == alone([*PROMPT, i + 3], 40, seed=i)[0]
    assert of.core.scheduler.preemptions
    assert of.core.seating.swap.used == 0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_what_was_computed_comes_back_and_nothing_is_computed_twice(
    ahead: bool, caching: bool
) -> None:
    of = squeezed(ahead=ahead, enable_prefix_caching=caching)
    of.run()
    expect_all(of)
    ways = [way for way, pages in of.parts.swap.copied if pages]
    assert ways[:2] == ["out", "back"]
    assert computed(of) == 2 * (len(PROMPT) + 1 + 39)


@pytest.mark.parametrize(
    "how", [{"slots": 0}, {"slots": 2}, {"page_s": 1e9}], ids=["none", "too_few", "slow_link"]
)
def test_it_is_computed_again_where_that_is_cheaper_or_there_is_no_room(
    how: dict[str, float],
) -> None:
    of = squeezed(**how, enable_prefix_caching=False)  # type: ignore[arg-type]
    of.run()
    expect_all(of)
    assert not of.parts.swap.copied
    assert computed(of) > 2 * (len(PROMPT) + 1 + 39)


def test_who_ends_while_it_is_swapped_out_leaves_nothing_behind() -> None:
    of = squeezed()
    while not of.core.seating.swap.used:
        of.step()
    (waits,) = of.core.scheduler.waits
    assert waits.phase is Phase.WAITING
    of.cancel(waits.request.submit.request)
    of.run()
    assert of.core.seating.swap.used == 0


def test_who_yields_a_place_keeps_what_would_be_lost() -> None:
    of = Harness(config(max_num_seqs=2, fairness_quantum=0), build(num_pages=60, slots=9))
    of.parts.runner.passes = lambda: of.clock.advance(0.01)
    for i in range(3):
        of.submit(f"flood{i}", PROMPT, 30, tenant="flood", seed=i)
    of.step(6)
    of.submit("other", [3], 4, tenant="other")
    of.run()
    assert of.core.scheduler.preemptions == 1
    assert of.parts.swap.copied == [("out", 1), ("back", 1)]  # the page that is not full
    assert (
        computed(of) == 5 + 3 * (5 - 4) - 1 + 3 * 29 + 4
    )  # the first page of the prompt is shared


def test_metrics_say_what_was_swapped() -> None:
    of = squeezed()
    while not of.core.seating.swap.used:
        of.step()
    used = of.core.seating.swap.used
    assert f"loratorio_engine_swap_pages {float(used)}" in of.metrics.text()
    of.run()
    text = of.metrics.text()
    assert "loratorio_engine_swap_pages 0.0" in text
    out, back = (sum(n for way, n in of.parts.swap.copied if way == w) for w in ("out", "back"))
    assert f'swapped_pages_total{{direction="out"}} {float(out)}' in text
    assert f'swapped_pages_total{{direction="back"}} {float(back)}' in text
