"""Drafts in the loop: fewer passes, the same tokens, and nothing of a rejected draft stays."""

import pytest

from engine.config import EngineConfig
from engine.fairness import INPUT_COST, OUTPUT_COST
from engine.pages import Kind
from engine.protocol import Finish, Sampling, TokenLogprobs, Usage
from engine.speculation.payoff import Payoff
from engine.speculation.settings import Method, SpeculationSettings
from engine.step import Chunk, Drawn, verified
from tests.engine.harness import Harness, config
from tests.fakes.grammars import FakeGrammars
from tests.fakes.proposer import FakeProposer
from tests.fakes.runner import EOS, alone, build

K = 3


def speculating(tokens: int = K, **changes: object) -> EngineConfig:
    changes = {"max_num_batched_tokens": 32, **changes}
    return config(speculation=SpeculationSettings(method=Method.NGRAM, tokens=tokens), **changes)


def harness(
    proposer: FakeProposer, *, changes: dict[str, object] | None = None, **parts: object
) -> Harness:
    engine = Harness(speculating(**(changes or {})), build(proposer=proposer, **parts))  # type: ignore[arg-type]
    proposer.running = lambda: engine.core.scheduler.runs
    warm(engine)
    return engine


def warm(engine: Harness) -> None:
    """The plain passes that come first, for each number of sequences."""
    for count in (1, 2, 4, 8):
        for number in range(count):
            engine.submit(f"warm{count}.{number}", max_tokens=6)
        engine.run()
    engine.parts.runner.plans.clear()


@pytest.fixture(params=[False, True])
def ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_right_drafts_are_kept_and_one_token_more_is_drawn(ahead: bool) -> None:
    engine = harness(FakeProposer(), ahead=ahead)
    engine.submit(max_tokens=9)
    engine.run()
    assert engine.tokens() == alone([5, 6, 7], 9, seed=7)[0]
    passes = engine.parts.runner.plans
    assert [len(plan.chunks[0].drafts) for plan in passes] == [0, 3, 3]  # 1 + 4 + 4 tokens
    assert engine.terminals()[0].usage == Usage(3, 0, 9)


def test_wrong_drafts_change_nothing_but_the_passes(ahead: bool) -> None:
    engine = harness(FakeProposer(wrong=lambda position: position % 3 == 0), ahead=ahead)
    for name in ("", "a1", "b2", "c3"):
        engine.submit(f"r{name}", [9, 9], 12, adapter=name, logprobs=1)
    engine.run()
    for name in ("", "a1", "b2", "c3"):
        assert engine.tokens(f"r{name}") == alone([9, 9], 12, seed=7, adapter=name)[0]
        for output in engine.outputs[0, f"r{name}"]:
            assert output.logprobs == [TokenLogprobs(-float(token)) for token in output.tokens]
    assert len(engine.parts.runner.plans) < 12
    assert engine.core.pool.holdings(Kind.KV) == 0


def test_pages_for_drafts_that_are_not_kept_go_back_at_once() -> None:
    engine = harness(FakeProposer(wrong=lambda position: True))
    engine.submit(tokens=[5] * 4, max_tokens=8)
    for known in range(5, 12):
        engine.step()
        (running,) = engine.core.scheduler.runs
        assert running.known == known
        assert len(running.pages) <= -(-known // 4)
        assert engine.core.pool.holdings(Kind.KV) == len(running.pages)
    engine.run()
    assert engine.tokens() == alone([5] * 4, 8, seed=7)[0]


def test_drafts_make_nobody_yield_and_do_without_where_pages_lack() -> None:
    engine = harness(FakeProposer(), num_pages=6)
    before = engine.core.scheduler.preemptions
    engine.submit("a", [5] * 10, 2, seed=1)
    engine.submit("b", [6] * 9, 3, seed=2)
    engine.run()
    assert engine.core.scheduler.preemptions == before
    assert engine.tokens("a") == alone([5] * 10, 2, seed=1)[0]
    assert engine.tokens("b") == alone([6] * 9, 3, seed=2)[0]


def test_a_stop_token_among_kept_drafts_ends_the_answer_there(ahead: bool) -> None:
    seed = next(s for s in range(900) if 3 < len(alone([5], 9, seed=s, stops=[EOS])[0]) < 7)
    expected, _ = alone([5], 9, seed=seed, stops=[EOS])
    engine = harness(FakeProposer(), ahead=ahead)
    engine.submit(tokens=[5], max_tokens=9, seed=seed, ignore_eos=False)
    engine.run()
    assert (engine.tokens(), engine.finish()) == (expected, Finish.STOP)
    assert engine.terminals()[0].usage == Usage(1, 0, len(expected) + 1)
    assert engine.terminals()[0].stop_token == EOS


def test_min_tokens_bar_stops_in_drafted_places_too() -> None:
    seed = next(s for s in range(900) if len(alone([5], 9, seed=s, stops=[EOS])[0]) == 3)
    expected, _ = alone([5], 9, seed=seed, stops=[EOS], barred_until=6)
    engine = harness(FakeProposer())
    sampling = Sampling(seed=seed, min_tokens=6)
    engine.submit(tokens=[5], max_tokens=9, ignore_eos=False, sampling=sampling)
    engine.run()
    assert engine.tokens() == expected


def test_no_draft_is_drawn_beyond_the_limit_or_the_grant() -> None:
    engine = harness(FakeProposer())
    engine.submit("limit", max_tokens=3)
    engine.run()
    assert [len(plan.chunks[0].drafts) for plan in engine.parts.runner.plans] == [0, 1]
    engine.parts.runner.plans.clear()
    engine.submit("grant", max_tokens=20, granted=4, n=2)
    engine.step(8)
    (request,) = engine.core.book
    assert request.spent == request.generated == 4
    engine.grant(40, "grant")
    engine.run()
    for index in (0, 1):
        assert len(engine.tokens("grant", index)) == 20


def test_no_pass_runs_ahead_of_one_that_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that decodes alone, where drafts do not pay, was taken in when the next pass had been
    launched, with drafts of another."""
    engine = harness(FakeProposer(), ahead=True)
    monkeypatch.setattr(Payoff, "pays", lambda self, sequences: sequences > 1)
    engine.submit("waits", max_tokens=12, granted=2)
    engine.step(4)
    engine.submit("goes on", [8, 9], max_tokens=20)
    engine.step(4)
    engine.grant(12, "waits")
    engine.run()
    assert any(chunk.drafts for plan in engine.parts.runner.plans for chunk in plan.chunks)
    assert engine.tokens("waits") == alone([5, 6, 7], 12, seed=7)[0]
    assert engine.tokens("goes on") == alone([8, 9], 20, seed=7)[0]


def test_what_was_not_kept_of_a_grant_can_be_spent_again() -> None:
    engine = harness(FakeProposer(wrong=lambda position: True))
    engine.submit(max_tokens=20, granted=5)
    for generated in (1, 2, 3, 4, 5):
        engine.step()
        (request,) = engine.core.book
        assert request.spent == request.generated == generated


@pytest.mark.parametrize("wrong", [False, True])
def test_fairness_charges_tokens_that_were_kept_alone(wrong: bool) -> None:
    engine = harness(FakeProposer(wrong=lambda position: wrong))
    engine.submit("other", [5] * 3, 40, tenant="y")  # keeps the counters
    engine.step()
    before = engine.core.scheduler.fairness.entry("x")
    engine.submit(max_tokens=30, tenant="x")
    engine.step(4)
    (request,) = [request for request in engine.core.book if request.submit.tenant == "x"]
    assert request.generated == (4 if wrong else 13)
    service = engine.core.scheduler.fairness["x"] - before
    assert service == 3 * INPUT_COST + request.generated * OUTPUT_COST


def test_prompts_and_drafts_share_the_budget_of_a_pass() -> None:
    engine = harness(FakeProposer(), changes={"max_num_batched_tokens": 8})
    engine.submit("a", max_tokens=12)
    engine.step(2)
    engine.submit("b", [9] * 14, 3)
    engine.run()
    plans = engine.parts.runner.plans
    assert max(plan.tokens for plan in plans) <= 8
    assert any(len(plan.chunks) == 2 and plan.chunks[0].drafts for plan in plans)
    assert engine.tokens("a") == alone([5, 6, 7], 12, seed=7)[0]
    assert engine.tokens("b") == alone([9] * 14, 3, seed=7)[0]


def test_masks_know_the_drafts_before_each_place(ahead: bool) -> None:
    plain = Harness(parts=build(grammars=FakeGrammars()))
    plain.submit(max_tokens=12, grammar="7/3", seed=3)
    plain.run()
    engine = harness(
        FakeProposer(wrong=lambda position: position % 4 == 1), grammars=FakeGrammars(), ahead=ahead
    )
    engine.submit(max_tokens=12, grammar="7/3", seed=3)
    engine.run()
    assert engine.tokens() == plain.tokens()
    assert engine.finish() == plain.finish() == Finish.STOP


def test_drafts_that_a_grammar_does_not_take_are_not_verified() -> None:
    proposer = FakeProposer()
    engine = harness(proposer, grammars=FakeGrammars())
    proposer._drafts = lambda ask, sequence: [3, 4, 3]  # type: ignore[method-assign]
    engine.submit(max_tokens=12, grammar="7/3", seed=3)
    engine.step(2)  # a token that leaves 0, so next is one that leaves 1
    assert not engine.parts.runner.plans[1].chunks[0].drafts
    proposer._drafts = lambda ask, sequence: [5, 4, 3]  # type: ignore[method-assign]
    engine.step()
    assert len(engine.parts.runner.plans[2].chunks[0].drafts) == 1


def test_what_was_drafted_and_kept_is_counted_under_vllms_names_and_by_tenant() -> None:
    engine = harness(FakeProposer(wrong=lambda position: position == 8))
    before = counters(engine)
    engine.submit(max_tokens=9)  # knows 4, then keeps all; knows 8, the first is wrong; then 9
    engine.run()
    found = {name: value - before.get(name, 0.0) for name, value in counters(engine).items()}
    labels = 'engine="engine",model_name=""'
    assert found[f"vllm:spec_decode_num_drafts_total{{{labels}}}"] == 3
    assert found[f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}"] == 8
    assert found[f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}"] == 5
    of_tenant = "loratorio_engine_tenant_draft_tokens_total"
    assert found[f'{of_tenant}{{kind="kept",tenant="t"}}'] == 5
    assert found[f'{of_tenant}{{kind="all",tenant="t"}}'] == 8


def counters(engine: Harness) -> dict[str, float]:
    lines = [
        line for line in engine.metrics.text().splitlines() if "draft" in line or "spec_" in line
    ]
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"
    }


def test_a_row_that_fails_after_kept_drafts_ends_the_answer_after_them() -> None:
    expected, _ = alone([5, 6, 7], 9, seed=7)
    engine = harness(FakeProposer())
    engine.parts.runner.poisoned = {expected[2]}
    engine.submit(max_tokens=9)
    engine.run()
    assert (engine.tokens(), engine.finish()) == (expected[:3], Finish.ERROR)
    assert engine.terminals()[0].error == "non-finite logits"


def test_a_cancelled_request_leaves_no_page_and_is_forgotten(ahead: bool) -> None:
    proposer = FakeProposer()
    engine = harness(proposer, ahead=ahead)
    engine.submit(max_tokens=40)
    engine.step(3)
    (running,) = engine.core.scheduler.runs
    engine.cancel()
    engine.step()
    assert engine.core.pool.holdings(Kind.KV) == 0
    assert proposer.forgotten[-1] == running.number


def test_a_pass_that_fails_gives_back_what_it_was_to_draw() -> None:
    engine = harness(FakeProposer())
    engine.submit(max_tokens=40, granted=30)
    engine.step(2)
    (request,) = engine.core.book
    engine.parts.runner.broken = lambda plan: RuntimeError("made to fail")
    engine.step()
    assert engine.finish() is Finish.ERROR
    assert request.spent == request.generated


def test_a_proposer_that_fails_is_not_asked_again(ahead: bool) -> None:
    proposer = FakeProposer()
    engine = harness(proposer, ahead=ahead)
    engine.submit(max_tokens=20)
    engine.step(3)
    proposer.wrong = lambda position: bool(1 / 0)
    engine.run()
    asked = len(proposer.asked)
    engine.submit("r2", max_tokens=9)
    engine.run()
    assert engine.tokens() == alone([5, 6, 7], 20, seed=7)[0]
    assert engine.tokens("r2") == alone([5, 6, 7], 9, seed=7)[0]
    assert len(proposer.asked) == asked
    assert engine.core.pool.holdings(Kind.KV) == 0


def test_drafts_are_kept_as_far_as_the_draws_in_their_place_agree() -> None:
    draws = [object()] * 2
    chunk = Chunk(sequence=1, tokens=[9, 4, 5], start=0, pages=[0], draw=draws[0], drafts=draws)  # type: ignore[arg-type]
    rows = [Drawn(4), Drawn(5), Drawn(6)]
    assert verified(chunk, rows).further == (rows[1], rows[2])
    assert verified(chunk, [Drawn(4), Drawn(7), Drawn(6)]).further == (Drawn(7),)
    assert verified(chunk, [Drawn(3), Drawn(5), Drawn(6)]).further == ()
    failed = Drawn(failed="no")
    assert verified(chunk, [Drawn(4), failed, Drawn(6)]).further == (failed,)
    assert verified(chunk, [failed, Drawn(5), Drawn(6)]) == failed
