"""Budgets, preemption and admission, seen from the plans that come out."""

import pytest

from engine.step import StepPlan
from tests.engine.harness import Harness, config
from tests.fakes.runner import alone, build


def lengths(plan: StepPlan) -> list[int]:
    return [len(chunk.tokens) for chunk in plan.chunks]


def test_decodes_go_first_and_prompts_share_what_is_left() -> None:
    engine = Harness(config(max_num_batched_tokens=10))
    engine.submit("a", [3] * 2, 9)
    engine.submit("b", [4] * 2, 9)
    engine.step()
    engine.submit("c", [5] * 20, 9)
    engine.submit("d", [6] * 20, 9)
    engine.step(4)
    planned = [lengths(plan) for plan in engine.parts.runner.plans[1:5]]
    assert planned == [[1, 1, 8], [1, 1, 8], [1, 1, 4, 4], [1, 1, 1, 7]]


def test_no_more_sequences_run_than_are_allowed() -> None:
    engine = Harness(config(max_num_seqs=2))
    for i in range(5):
        engine.submit(f"r{i}", [3], 3)
    engine.run()
    assert max(len(plan.chunks) for plan in engine.parts.runner.plans) == 2
    assert all(len(engine.tokens(f"r{i}")) == 3 for i in range(5))


def test_a_sequence_joins_at_the_pass_after_another_left() -> None:
    engine = Harness(config(max_num_seqs=1))
    engine.submit("a", [3], 2)
    engine.submit("b", [4], 2)
    engine.run()
    assert [plan.chunks[0].sequence for plan in engine.parts.runner.plans] == [1, 1, 2, 2]


def test_tenants_take_turns() -> None:
    engine = Harness(config(max_num_seqs=1))
    for i in range(6):
        engine.submit(f"flood{i}", [3], 1, tenant="loud")
    engine.submit("one", [3], 1, tenant="quiet")
    engine.step(2)
    assert engine.tokens("flood0")
    assert engine.tokens("one")


def test_a_higher_priority_overtakes_those_who_wait() -> None:
    engine = Harness(config(max_num_seqs=1))
    engine.submit("runs", [3], 2)
    engine.submit("waits", [3], 1)
    engine.step()
    engine.submit("urgent", [3], 1, priority=1)
    engine.step(2)
    assert engine.tokens("urgent")
    assert not engine.tokens("waits")


def test_pages_run_out_and_the_newest_yields_without_changing_its_tokens() -> None:
    engine = Harness(parts=build(num_pages=6))
    for name, prompt in (("old", [3] * 4), ("new", [4] * 4)):
        engine.submit(name, prompt, 16)
    engine.run()
    assert engine.core.scheduler.preemptions >= 1
    assert engine.tokens("old") == alone([3] * 4, 16, seed=7)[0]
    assert engine.tokens("new") == alone([4] * 4, 16, seed=7)[0]
    old = [
        chunk.start
        for plan in engine.parts.runner.plans
        for chunk in plan.chunks
        if chunk.sequence == 1
    ]
    assert old == sorted(old)  # the older was never made to start again


def test_the_lowest_priority_yields_even_when_it_is_the_oldest() -> None:
    engine = Harness(parts=build(num_pages=6))
    engine.submit("old", [3] * 4, 16)
    engine.submit("urgent", [4] * 4, 16, priority=1)
    engine.run()
    starts = [c.start for p in engine.parts.runner.plans for c in p.chunks if c.sequence == 1]
    assert starts != sorted(starts)
    assert engine.tokens("old") == alone([3] * 4, 16, seed=7)[0]


def test_idle_adapters_make_way_before_anybody_yields() -> None:
    engine = Harness(parts=build(num_pages=10))
    engine.submit("warm", [3], 1, adapter="a5")
    engine.run()
    assert engine.core.residency.resident == ["a5"]
    engine.submit("long", [3] * 4, 33)
    engine.run()
    assert engine.core.residency.resident == []
    assert engine.core.scheduler.preemptions == 0
    assert engine.tokens("long") == alone([3] * 4, 33, seed=7)[0]


def test_one_who_waits_for_an_adapter_holds_no_page_and_blocks_nobody() -> None:
    engine = Harness()
    engine.parts.host.delay = 5
    engine.submit("cold", [3], 2, adapter="a2")
    engine.submit("base", [4], 2)
    engine.step(2)
    assert len(engine.tokens("base")) == 2
    assert engine.core.pool.free_pages == engine.core.pool.num_pages
    engine.run()
    assert len(engine.tokens("cold")) == 2


def test_a_large_request_is_not_starved_by_small_ones_that_keep_coming() -> None:
    engine = Harness(config(max_num_batched_tokens=40), build(num_pages=10))
    engine.submit("small0", [3] * 8, 20)
    engine.step()
    engine.submit("large", [4] * 36, 2)
    for i in range(1, 40):
        engine.submit(f"small{i}", [3] * 4, 2)
        engine.step()
        if engine.terminals("large"):
            break
    assert engine.tokens("large")
    assert i < 25


def test_an_adapter_is_not_starved_by_requests_of_a_resident_one() -> None:
    engine = Harness(config(max_num_seqs=4, fairness_quantum=24), build(num_pages=12))
    engine.submit("a", [3] * 4, 12, adapter="a6")
    engine.step(2)
    engine.submit("b", [3] * 4, 2, adapter="b6")
    for i in range(40):
        engine.submit(f"a{i}", [3] * 4, 12, adapter="a6")
        engine.step()
        if engine.terminals("b"):
            break
    assert engine.tokens("b") == alone([3] * 4, 2, seed=7, adapter="b6")[0]


@pytest.mark.parametrize("length", [1, 4, 5, 15, 16, 17, 63])
def test_every_prompt_length_up_to_the_context_is_served(length: int) -> None:
    engine = Harness()
    prompt = [3 + i for i in range(length)]
    engine.submit(tokens=prompt, max_tokens=100)
    engine.run()
    assert engine.tokens() == alone(prompt, 64 - length, seed=7)[0]


def test_each_budget_binds_where_the_others_leave_room() -> None:
    roomy = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    wide = {"num_pages": 64, "max_model_len": 64}
    first = [  # settings, parts, chunks of the first pass of four prompts of nine tokens
        (roomy, wide, [9, 9, 9, 9]),
        ({**roomy, "max_num_batched_tokens": 20}, wide, [9, 9, 2]),
        ({**roomy, "max_num_seqs": 2}, wide, [9, 9]),
        (roomy, {**wide, "num_pages": 6}, [9, 9]),  # three pages each
    ]
    for settings, parts, expected in first:
        engine = Harness(config(**settings), build(**parts))  # type: ignore[arg-type]
        for i in range(4):
            engine.submit(f"r{i}", [3 + i] * 9, 3)
        engine.step()
        assert lengths(engine.parts.runner.plans[0]) == expected


def test_the_context_binds_a_prompt_and_an_answer() -> None:
    engine = Harness(config(max_num_batched_tokens=64), build(num_pages=64, max_model_len=12))
    engine.submit("answer", [3] * 9, 40)
    engine.submit("prompt", [3] * 13, 1)
    engine.run()
    assert len(engine.tokens("answer")) == 3
    assert (0, "prompt") in engine.refused
