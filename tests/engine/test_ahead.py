"""Planning a pass while one runs: same tokens, one terminal, nothing outlives its pass."""

import pytest

from engine.pages import Kind
from engine.protocol import Finish, Sampling, TokenLogprobs, Usage
from engine.reception import derive_seed
from engine.step import DRAWN, StepPlan, StepResult
from tests.engine.harness import Harness, config
from tests.fakes.runner import EOS, Launched, alone, build


@pytest.fixture
def engine() -> Harness:
    return Harness(parts=build(ahead=True))


def kv_pages(engine: Harness) -> int:
    return engine.core.pool.holdings(Kind.KV)


def test_the_next_pass_is_launched_before_the_tokens_of_one_are_read(
    engine: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    launch, wait = engine.parts.runner.launch, Launched.wait

    def launched(plan: StepPlan) -> Launched:
        happened.append("launch")
        return launch(plan)

    def waited(pending: Launched) -> StepResult:
        happened.append("read")
        return wait(pending)

    monkeypatch.setattr(engine.parts.runner, "launch", launched)
    monkeypatch.setattr(Launched, "wait", waited)
    engine.submit(max_tokens=3)
    engine.run()
    assert happened == ["launch", "launch", "read", "launch", "read", "read"]
    assert [plan.chunks[0].tokens[-1] for plan in engine.parts.runner.plans] == [7, DRAWN, DRAWN]
    assert engine.tokens() == alone([5, 6, 7], 3, seed=7)[0]


def test_a_limit_costs_no_pass_and_a_stop_token_one(engine: Harness) -> None:
    seed = next(s for s in range(500) if alone([5], 9, seed=s, stops=[EOS])[1] == EOS)
    expected, _ = alone([5], 9, seed=seed, stops=[EOS])
    engine.submit(tokens=[5], max_tokens=9, seed=seed, ignore_eos=False)
    engine.run()
    assert (engine.tokens(), engine.finish()) == (expected, Finish.STOP)
    assert engine.terminals()[0].usage == Usage(1, 0, len(expected) + 1)
    engine.step()
    assert len(engine.parts.runner.plans) == len(expected) + 2
    engine.submit("r2", max_tokens=4)
    before = len(engine.parts.runner.plans)
    engine.run()
    assert len(engine.parts.runner.plans) == before + 4


def test_base_and_adapters_share_passes_without_mixing(engine: Harness) -> None:
    for name in ("", "a1", "b2", "c3"):
        engine.submit(f"r{name}", [9, 9], 8, adapter=name, logprobs=1)
    engine.run()
    for name in ("", "a1", "b2", "c3"):
        assert engine.tokens(f"r{name}") == alone([9, 9], 8, seed=7, adapter=name)[0]
        for output in engine.outputs[0, f"r{name}"]:
            assert output.logprobs == [TokenLogprobs(-float(token)) for token in output.tokens]


def test_a_cancelled_request_frees_its_pages_within_a_step(engine: Harness) -> None:
    engine.submit(max_tokens=50)
    engine.step(3)
    engine.cancel()
    engine.step()
    assert (engine.finish(), kv_pages(engine)) == (Finish.CANCELLED, 0)
    assert engine.terminals()[0].usage == Usage(3, 0, 2)  # the third was not read yet
    engine.step(2)
    assert len(engine.terminals()) == 1


def test_pages_of_a_pass_under_way_can_be_given_away_at_once() -> None:
    engine = Harness(config(max_num_seqs=2), build(num_pages=7, ahead=True))
    engine.submit("old", [5] * 16, 9, adapter="a1")
    engine.step(2)
    engine.cancel("old")
    engine.submit("new", [9] * 16, 9, adapter="b1")
    engine.run()
    assert not engine.parts.runner.corrupted
    assert engine.tokens("new") == alone([9] * 16, 9, seed=7, adapter="b1")[0]


def test_a_pass_that_fails_ends_its_requests_and_not_those_of_the_next(engine: Harness) -> None:
    def out_of_luck(plan: StepPlan) -> Exception | None:
        return RuntimeError("a secret") if len(engine.parts.runner.plans) == 2 else None

    engine.parts.runner.broken = out_of_luck
    engine.submit("a", max_tokens=9)
    engine.step(2)  # the second pass is under way
    engine.submit("b", max_tokens=3)
    engine.run()
    assert engine.terminals("a")[0].error == "the forward pass failed (RuntimeError)"
    assert engine.tokens("b") == alone([5, 6, 7], 3, seed=7)[0]
    assert kv_pages(engine) == 0


def test_a_launch_that_raises_keeps_what_the_pass_before_it_drew(engine: Harness) -> None:
    launch = engine.parts.runner.launch

    class Full:
        def launch(self, plan: StepPlan) -> Launched:
            if len(engine.parts.runner.plans) == 2:
                raise MemoryError
            return launch(plan)

    engine.core._runner = Full()
    engine.submit(max_tokens=9)
    engine.run()
    assert (engine.finish(), len(engine.tokens())) == (Finish.ERROR, 2)


def test_a_row_that_fails_alone_ends_its_own_request_only(engine: Harness) -> None:
    engine.parts.runner.poisoned = {66}
    engine.submit("good", [5], 4)
    engine.submit("bad", [66], 4)
    engine.run()
    assert engine.terminals("bad")[0].error == "non-finite logits"
    assert engine.tokens("good") == alone([5], 4, seed=7)[0]


def test_a_draw_that_was_dropped_gives_its_grant_back(engine: Harness) -> None:
    def ends(seed: int, index: int) -> list[int]:
        tokens, stop = alone([5], 9, seed=derive_seed(seed, index), stops=[EOS])
        return tokens if stop is None else [*tokens, stop]

    seed = next(s for s in range(2000) if len(ends(s, 0)) < 4 and len(ends(s, 1)) == 9)
    granted = len(ends(seed, 0)) + 9
    engine.submit(tokens=[5], max_tokens=9, n=2, seed=seed, granted=granted, ignore_eos=False)
    engine.run()
    assert sorted(t.finish for t in engine.terminals()) == [Finish.LENGTH, Finish.STOP]


def test_prompt_logprobs_come_once_whatever_is_under_way(engine: Harness) -> None:
    prompt = [3 + i for i in range(40)]
    engine.submit(tokens=prompt, max_tokens=3, prompt_logprobs=0, n=2)
    engine.run()
    reported = [o.prompt_logprobs for o in engine.outputs[0, "r1"] if o.prompt_logprobs is not None]
    assert reported == [[TokenLogprobs(-float(token)) for token in prompt[1:]]]


def test_min_tokens_counts_the_token_being_drawn(engine: Harness) -> None:
    stops = list(range(2, 97, 2))
    sampling = Sampling(seed=7, min_tokens=5)
    engine.submit(tokens=[5], max_tokens=9, stop_tokens=stops, sampling=sampling)
    engine.run()
    expected, stop = alone([5], 9, seed=7, stops=stops, barred_until=5)
    assert (engine.tokens(), engine.terminals()[0].stop_token) == (expected, stop)
