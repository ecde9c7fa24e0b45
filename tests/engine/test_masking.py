"""Answers held to a grammar, in every way the loop can run: the right mask at every place."""

import pytest

from engine.pages import Kind
from engine.protocol import Finish, RefusalCode, Sampling, Usage
from tests.engine.harness import Harness, config
from tests.fakes.grammars import FakeGrammars
from tests.fakes.runner import EOS, alone, build


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def engine(request: pytest.FixtureRequest) -> Harness:
    return Harness(parts=build(ahead=request.param, grammars=FakeGrammars()))


def follows(tokens: list[int], modulus: int) -> bool:
    return all(token % modulus == at % modulus for at, token in enumerate(tokens))


def test_an_answer_ends_where_its_grammar_does(engine: Harness) -> None:
    engine.submit(max_tokens=20, grammar="7/3")
    engine.run()
    assert len(engine.tokens()) == 7
    assert follows(engine.tokens(), 3)
    assert engine.finish() == Finish.STOP
    last = engine.terminals()[0]
    assert (last.usage, last.stop_token) == (Usage(3, 0, 7), None)
    assert engine.core.pool.holdings(Kind.KV) == 0


def test_a_limit_cuts_it_short(engine: Harness) -> None:
    engine.submit(max_tokens=4, grammar="7/3")
    engine.run()
    assert (len(engine.tokens()), engine.finish()) == (4, Finish.LENGTH)
    engine.submit("r2", max_tokens=7, grammar="7/3")
    engine.run()
    assert engine.finish("r2") == Finish.STOP  # complete is complete


def test_others_in_the_pass_get_their_tokens_all_the_same(engine: Harness) -> None:
    for name, grammar in (("a", "9/4"), ("b", None), ("c", "5/2"), ("d", None)):
        engine.submit(name, max_tokens=12, grammar=grammar, adapter="x1" if name > "b" else "")
    engine.run()
    assert engine.tokens("b") == alone([5, 6, 7], 12, seed=7)[0]
    assert engine.tokens("d") == alone([5, 6, 7], 12, seed=7, adapter="x1")[0]
    assert follows(engine.tokens("a"), 4)
    assert follows(engine.tokens("c"), 2)


def test_each_choice_has_its_own_place(engine: Harness) -> None:
    engine.submit(n=3, max_tokens=20, grammar="6/5", sampling=Sampling(seed=3))
    engine.run()
    answers = [engine.tokens(index=i) for i in range(3)]
    assert all(len(tokens) == 6 and follows(tokens, 5) for tokens in answers)
    assert len({tuple(tokens) for tokens in answers}) == 3


def test_tokens_are_the_same_alone_and_in_company(engine: Harness) -> None:
    engine.submit("alone", max_tokens=9, grammar="9/4")
    engine.run()
    for i in range(5):
        engine.submit(f"r{i}", [5, i + 1], 15, grammar=f"{i + 6}/3", seed=i)
    engine.submit("again", max_tokens=9, grammar="9/4")
    engine.run()
    assert engine.tokens("again") == engine.tokens("alone")


@pytest.mark.parametrize("ahead", [False, True])
def test_a_sequence_that_yielded_its_pages_goes_on_where_it_was(ahead: bool) -> None:
    parts = build(num_pages=9, page_tokens=4, ahead=ahead, grammars=FakeGrammars())
    engine = Harness(config(max_num_seqs=4), parts)
    for i in range(4):
        engine.submit(f"r{i}", [5, 6, 7], 16, grammar="14/4", seed=i)
    engine.run()
    assert engine.core.scheduler.preemptions > 0
    roomy = Harness(parts=build(grammars=FakeGrammars()))
    for i in range(4):
        roomy.submit(f"r{i}", [5, 6, 7], 16, grammar="14/4", seed=i)
    roomy.run()
    for i in range(4):
        assert engine.tokens(f"r{i}") == roomy.tokens(f"r{i}")
        assert len(engine.tokens(f"r{i}")) == 14


def test_barred_stop_tokens_are_barred_within_the_grammar(engine: Harness) -> None:
    seed = next(s for s in range(900) if _first(s, min_tokens=0) == EOS)
    assert _first(seed, min_tokens=1) != EOS
    engine.submit(
        max_tokens=3, grammar="3/1", ignore_eos=False, sampling=Sampling(seed=seed, min_tokens=1)
    )
    engine.run()
    assert engine.tokens()[0] != EOS


def _first(seed: int, *, min_tokens: int) -> int:
    return alone([5, 6, 7], 1, seed=seed, stops=[EOS], barred_until=min_tokens)[1] or -1


def test_a_token_that_stops_ends_it_though_the_grammar_goes_on(engine: Harness) -> None:
    seed = next(s for s in range(900) if _first(s, min_tokens=0) == EOS)
    engine.submit(max_tokens=3, grammar="3/1", ignore_eos=False, sampling=Sampling(seed=seed))
    engine.run()
    assert (engine.tokens(), engine.finish()) == ([], Finish.STOP)
    assert engine.terminals()[0].stop_token == EOS


def test_a_grammar_that_cannot_be_followed_ends_its_sequence_alone(engine: Harness) -> None:
    engine.submit("faulty", max_tokens=20, grammar="4/3!")
    engine.submit("sound", max_tokens=9, grammar="9/3")
    engine.run()
    assert engine.finish("faulty") == Finish.ERROR
    assert "too complex" in engine.terminals("faulty")[0].error
    assert (len(engine.tokens("sound")), engine.finish("sound")) == (9, Finish.STOP)


def test_a_pass_goes_on_without_a_mask_that_is_not_waited_for(engine: Harness) -> None:
    engine.submit("late", max_tokens=20, grammar="4/3?")
    engine.submit("sound", max_tokens=9, grammar="9/3")
    engine.submit("free", max_tokens=6)
    engine.run()
    assert (len(engine.tokens("late")), engine.finish("late")) == (3, Finish.ERROR)
    assert "too complex" in engine.terminals("late")[0].error
    assert len(engine.terminals("late")) == 1
    assert (len(engine.tokens("sound")), engine.finish("sound")) == (9, Finish.STOP)
    assert engine.tokens("free") == alone([5, 6, 7], 6, seed=7)[0]
    assert engine.core.pool.holdings(Kind.KV) == 0


def test_an_invalid_grammar_is_refused_and_a_slow_one_waited_for() -> None:
    grammars = FakeGrammars(slow=True)
    engine = Harness(parts=build(grammars=grammars))
    engine.submit("bad", grammar="bad")
    engine.submit("slow", max_tokens=9, grammar="9/3")
    engine.submit("free", max_tokens=3)
    engine.step(10)
    assert engine.finish("free") == Finish.LENGTH
    assert not engine.outputs[0, "slow"]
    engine.clock.advance(2)
    grammars.settle()
    engine.run()
    assert engine.refused[0, "bad"].code == RefusalCode.INVALID
    assert "unknown name" in engine.refused[0, "bad"].detail
    assert len(engine.tokens("slow")) == 9
    waited = [line for line in engine.metrics.text().splitlines() if 'cause="grammar"' in line]
    assert any(line.endswith(" 4.0") for line in waited), waited  # both of them


def test_a_request_that_waits_for_its_grammar_can_be_cancelled() -> None:
    grammars = FakeGrammars(slow=True)
    engine = Harness(parts=build(grammars=grammars))
    engine.submit("bad", grammar="bad")
    engine.step(2)
    engine.cancel("bad")
    engine.step()
    grammars.settle()
    engine.step(2)
    assert engine.finish("bad") == Finish.CANCELLED
    assert (0, "bad") not in engine.refused


def test_without_grammars_such_requests_are_refused() -> None:
    engine = Harness()
    engine.submit(grammar="3/1")
    engine.step()
    assert engine.refused[0, "r1"].code == RefusalCode.INVALID


def test_passes_without_grammars_make_no_masks(engine: Harness) -> None:
    engine.submit(max_tokens=5)
    engine.run()
    assert isinstance(engine.parts.built.grammars, FakeGrammars)
    assert engine.parts.built.grammars.masked == 0
    assert "loratorio_engine_masked_draws_total 0.0" in engine.metrics.text()


def test_a_grant_that_runs_out_pauses_it_at_its_place(engine: Harness) -> None:
    engine.submit(max_tokens=20, grammar="8/3", granted=3)
    engine.step(8)
    assert len(engine.tokens()) == 3
    engine.grant(20)
    engine.run()
    assert len(engine.tokens()) == 8
    assert follows(engine.tokens(), 3)
