"""The loop: one terminal each, whatever happens; pages free within a step; nobody else is hurt."""

import logging

import pytest

from engine.errors import DeviceLost
from engine.observer import Tier
from engine.pages import Kind
from engine.protocol import (
    AskCounts,
    AskRecorded,
    Cancel,
    Counts,
    Drain,
    Finish,
    Goodbye,
    Recorded,
    RefusalCode,
    Retire,
    Sampling,
    Step,
    TokenLogprobs,
    Usage,
)
from engine.step import StepPlan
from tests.engine.harness import Harness, config, submit
from tests.fakes.runner import EOS, VOCAB, alone, build


@pytest.fixture
def engine() -> Harness:
    return Harness()


def kv_pages(engine: Harness) -> int:
    return engine.core.pool.holdings(Kind.KV)


def test_tokens_are_those_of_a_solo_run_and_usage_is_exact(engine: Harness) -> None:
    engine.submit(tokens=[5, 6, 7], max_tokens=6)
    engine.run()
    assert engine.tokens() == alone([5, 6, 7], 6, seed=7)[0]
    assert engine.finish() is Finish.LENGTH
    assert engine.terminals()[0].usage == Usage(3, 0, 6)
    assert kv_pages(engine) == 0


def test_base_and_adapters_of_every_size_share_passes_without_mixing(engine: Harness) -> None:
    for name in ("", "a1", "b2", "c3"):
        engine.submit(f"r{name}", [9, 9], 8, adapter=name)
    engine.run()
    for name in ("", "a1", "b2", "c3"):
        assert engine.tokens(f"r{name}") == alone([9, 9], 8, seed=7, adapter=name)[0]
    assert "loratorio_engine_mixed_passes_total 8.0" in engine.metrics.text()


def test_one_adapters_chunks_are_adjacent(engine: Harness) -> None:
    for i, name in enumerate(["a1", "", "b1", "a1", "b1", ""]):
        engine.submit(f"r{i}", [9, 9], 4, adapter=name)
    engine.run()
    for plan in engine.parts.runner.plans:
        rows = [chunk.adapter for chunk in plan.chunks]
        assert rows == sorted(rows)


def test_a_long_prompt_is_computed_in_chunks_while_others_decode(engine: Harness) -> None:
    engine.submit("short", [3], 12)
    engine.step()
    engine.submit("long", list(range(3, 53)), 3)
    engine.step(2)
    assert len(engine.tokens("short")) == 3  # a token per pass all along
    engine.run()
    assert max(plan.tokens for plan in engine.parts.runner.plans) <= 16
    assert engine.tokens("long") == alone(list(range(3, 53)), 3, seed=7)[0]


def test_end_of_sequence_stops_and_is_counted_but_not_delivered() -> None:
    engine = Harness()
    seed = next(s for s in range(500) if alone([5], 9, seed=s, stops=[EOS])[1] == EOS)
    expected, _ = alone([5], 9, seed=seed, stops=[EOS])
    engine.submit(tokens=[5], max_tokens=9, seed=seed, ignore_eos=False)
    engine.run()
    (last,) = engine.terminals()
    assert engine.tokens() == expected
    assert (last.finish, last.stop_token) == (Finish.STOP, EOS)
    assert last.usage == Usage(1, 0, len(expected) + 1)


def test_a_requests_own_stop_tokens_stop_it_even_when_eos_is_ignored(engine: Harness) -> None:
    stop = alone([5], 3, seed=7)[0][2]
    engine.submit(tokens=[5], max_tokens=9, stop_tokens=[stop])
    engine.run()
    assert engine.terminals()[0].stop_token == stop
    assert len(engine.tokens()) <= 2


def test_stop_tokens_are_barred_before_min_tokens(engine: Harness) -> None:
    stops = list(range(2, VOCAB, 2))
    sampling = Sampling(seed=7, min_tokens=5)
    engine.submit(tokens=[5], max_tokens=9, stop_tokens=stops, sampling=sampling)
    engine.run()
    expected, stop = alone([5], 9, seed=7, stops=stops, barred_until=5)
    assert (engine.tokens(), engine.terminals()[0].stop_token) == (expected, stop)
    assert len(expected) >= 5


def test_max_tokens_is_clamped_to_the_context(engine: Harness) -> None:
    engine.submit(tokens=[5] * 60, max_tokens=1000)
    engine.run()
    assert (len(engine.tokens()), engine.finish()) == (4, Finish.LENGTH)


def test_choices_differ_and_the_first_is_that_of_n_1(engine: Harness) -> None:
    engine.submit(n=3, max_tokens=6)
    engine.run()
    texts = [engine.tokens(index=i) for i in range(3)]
    assert texts[0] == alone([5, 6, 7], 6, seed=7)[0]
    assert len({tuple(text) for text in texts}) == 3
    terminals = engine.terminals()
    assert sorted(t.index for t in terminals) == [0, 1, 2]
    assert all(t.usage == Usage(3, 0, 6) for t in terminals)


def test_a_request_without_seed_gets_one_that_stays(engine: Harness) -> None:
    engine.submit("a", seed=None, max_tokens=12)
    engine.submit("b", seed=None, max_tokens=12)
    engine.run()
    assert engine.tokens("a") != engine.tokens("b")


def test_logprobs_come_with_each_token(engine: Harness) -> None:
    engine.submit(logprobs=2, max_tokens=3)
    engine.run()
    for output in engine.outputs[0, "r1"]:
        assert output.logprobs == [TokenLogprobs(-float(token)) for token in output.tokens]


@pytest.mark.parametrize("length", [1, 2, 16, 17, 40])
def test_prompt_logprobs_survive_chunking_and_come_once(length: int) -> None:
    engine = Harness()
    prompt = [3 + i for i in range(length)]
    engine.submit(tokens=prompt, max_tokens=3, prompt_logprobs=0, n=2)
    engine.run()
    reported = [o.prompt_logprobs for o in engine.outputs[0, "r1"] if o.prompt_logprobs is not None]
    assert reported == [[TokenLogprobs(-float(token)) for token in prompt[1:]]]


def test_cancel_frees_pages_within_a_step_and_reports_usage(engine: Harness) -> None:
    engine.submit(max_tokens=50)
    engine.step(3)
    engine.cancel()
    engine.step()
    assert engine.finish() is Finish.CANCELLED
    assert engine.terminals()[0].usage == Usage(3, 0, 3)
    assert kv_pages(engine) == 0


def test_a_request_cancelled_while_it_waits_cost_nothing() -> None:
    engine = Harness(config(max_num_seqs=1))
    engine.submit("first", max_tokens=20)
    engine.submit("second")
    engine.step(2)
    engine.cancel("second")
    engine.step()
    assert engine.terminals("second")[0].usage == Usage(0, 0, 0)


def test_cancelling_twice_or_after_the_end_says_nothing_more(engine: Harness) -> None:
    engine.submit(max_tokens=2)
    engine.run()
    engine.cancel()
    engine.cancel("never-seen")
    engine.step()
    assert len(engine.terminals()) == 1


def test_a_closed_connection_cancels_what_was_submitted_on_it_only(engine: Harness) -> None:
    engine.submit("r1", max_tokens=9, connection=1)
    engine.submit("r1", max_tokens=9, connection=2)
    engine.step(2)
    engine.gone(1)
    engine.run()
    assert engine.finish("r1", connection=1) is Finish.CANCELLED
    assert engine.finish("r1", connection=2) is Finish.LENGTH
    assert kv_pages(engine) == 0


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    engine = Harness(config(max_num_seqs=1))
    engine.submit("runs", max_tokens=50, deadline_ms=1000)
    engine.submit("waits", max_tokens=50, deadline_ms=1000)
    engine.step(2)
    engine.clock.advance(1.0)
    engine.step()
    assert engine.finish("runs") is engine.finish("waits") is Finish.DEADLINE


def test_the_deadline_of_an_ended_request_does_not_hit_a_later_one_of_its_name(
    engine: Harness,
) -> None:
    engine.submit(max_tokens=1, deadline_ms=1000)
    engine.run()
    engine.submit(max_tokens=3)
    engine.step()
    engine.clock.advance(2.0)
    engine.run()
    assert [t.finish for t in engine.terminals()] == [Finish.LENGTH, Finish.LENGTH]


def test_a_pass_that_raises_ends_its_requests_and_the_engine_goes_on(
    engine: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_luck(plan: StepPlan) -> Exception | None:
        return RuntimeError("a secret") if len(plan.chunks) == 2 else None

    engine.parts.runner.broken = out_of_luck
    engine.submit("a", max_tokens=9)
    engine.step()
    engine.submit("b", max_tokens=9)
    with caplog.at_level(logging.CRITICAL):
        engine.step()
    assert engine.finish("a") is engine.finish("b") is Finish.ERROR
    assert engine.terminals("a")[0].error == "the forward pass failed (RuntimeError)"
    assert kv_pages(engine) == 0
    engine.submit("c", max_tokens=3)
    engine.run()
    assert engine.finish("c") is Finish.LENGTH


def test_a_runner_that_answers_too_little_is_a_failed_pass(engine: Harness) -> None:
    launch = engine.parts.runner.launch

    class Short:
        def launch(self, plan: StepPlan) -> object:
            pending = launch(plan)
            pending.result.drawn.pop()  # type: ignore[union-attr]
            return pending

    engine.core._runner = Short()  # type: ignore[assignment]
    engine.submit()
    engine.step()
    assert engine.finish() is Finish.ERROR


def test_a_lost_device_ends_the_engine(engine: Harness) -> None:
    engine.parts.runner.broken = lambda plan: DeviceLost("gone")
    engine.submit()
    with pytest.raises(DeviceLost):
        engine.step()


def test_a_row_that_fails_alone_ends_its_own_request_only(engine: Harness) -> None:
    engine.parts.runner.poisoned = {66}
    engine.submit("good", [5], 4)
    engine.submit("bad", [66], 4)
    engine.run()
    assert engine.finish("bad") is Finish.ERROR
    assert engine.terminals("bad")[0].error == "non-finite logits"


def test_a_failing_load_refuses_its_own_requests_only(engine: Harness) -> None:
    engine.parts.host.missing, engine.parts.host.invalid = {"m1"}, {"i1"}
    for name in ("m1", "i1", "ok1", ""):
        engine.submit(f"r{name}", adapter=name)
    engine.run()
    assert engine.refused[0, "rm1"].code is RefusalCode.ADAPTER_MISSING
    assert engine.refused[0, "ri1"].code is RefusalCode.ADAPTER_INVALID
    assert "lora_A" in engine.refused[0, "ri1"].detail
    assert engine.finish("rok1") is engine.finish("r") is Finish.LENGTH


def test_a_retired_adapter_stays_while_it_is_used_then_all_of_it_is_free(engine: Harness) -> None:
    engine.submit("r1", [3] * 8, 8, adapter="a2")
    engine.submit("r2", [3] * 8, 4)
    engine.step(2)
    engine.tell(Retire("a2"))
    engine.run()
    assert engine.finish("r1") is Finish.LENGTH
    resting = engine.core.pool.resting_pages
    assert engine.core.residency.resident == ["a2"]
    engine.tell(Retire("a2"))
    engine.step()
    assert engine.core.residency.resident == []
    assert engine.core.residency.tier("a2") is Tier.DISK
    assert 0 < engine.core.pool.resting_pages < resting  # the base's prefixes are still there
    engine.submit("r3", adapter="a2")  # should somebody name it all the same
    engine.run()
    assert engine.finish("r3") is Finish.LENGTH


def test_an_adapter_that_cannot_be_laid_out_is_refused(engine: Harness) -> None:
    engine.parts.memory.unusable = {"u1"}
    engine.submit("bad", adapter="u1", n=2)
    engine.submit("good", adapter="ok1")
    engine.run()
    assert engine.refused[0, "bad"].code is RefusalCode.ADAPTER_INVALID
    assert engine.finish("good") is Finish.LENGTH


def test_an_engine_without_a_store_refuses_adapters() -> None:
    engine = Harness(parts=build(store=False))
    engine.submit(adapter="a1")
    engine.step()
    assert engine.refused[0, "r1"].code is RefusalCode.ADAPTER_MISSING


def test_an_adapter_larger_than_the_pool_never_fits() -> None:
    engine = Harness(parts=build(num_pages=8))
    engine.submit(adapter="x9")
    engine.run()
    refused = engine.refused[0, "r1"]
    assert refused.code is RefusalCode.NEVER_FITS
    assert refused.detail == "the adapter takes 9 pages and the request 2; this engine has 8"


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    engine = Harness(config(max_num_seqs=2, max_waiting=1))
    for i in range(4):
        engine.submit(f"r{i}", max_tokens=9)
    engine.step()
    assert list(engine.refused) == [(0, "r3")]
    refused = engine.refused[0, "r3"]
    assert refused.code is RefusalCode.QUEUE_FULL
    assert refused.retry_ms
    assert 50 <= refused.retry_ms <= 10_000


def test_a_name_that_is_open_already_ends_the_connection(engine: Harness) -> None:
    engine.submit(max_tokens=9)
    engine.step()
    engine.submit(max_tokens=9)
    engine.step()
    assert (0, Goodbye("request r1 is already open")) in engine.said


def test_a_grant_bounds_all_choices_together_and_is_asked_for_ahead() -> None:
    engine = Harness(config(grant_ahead=2, grant_step=6))
    engine.submit(n=2, max_tokens=10, granted=6)
    engine.step(3)
    asks = [o.wants for o in engine.outputs[0, "r1"] if o.wants]
    assert asks == [12]
    engine.step(10)
    assert len(engine.tokens(index=0)) + len(engine.tokens(index=1)) == 6
    engine.grant(20)
    engine.run()
    assert len(engine.tokens(index=0)) == len(engine.tokens(index=1)) == 10


def test_without_a_grant_in_time_the_choices_end() -> None:
    engine = Harness(config(grant_timeout_s=5.0))
    engine.submit(max_tokens=10, granted=3)
    engine.step(6)
    assert not engine.terminals()
    engine.clock.advance(5.0)
    engine.step()
    assert (engine.finish(), len(engine.tokens())) == (Finish.GRANT, 3)


def test_a_request_granted_nothing_asks_before_it_computes(engine: Harness) -> None:
    engine.submit(max_tokens=2, granted=0)
    engine.step(2)
    assert engine.outputs[0, "r1"][0].wants == 2
    assert not engine.parts.runner.plans
    engine.grant(2)
    engine.run()
    assert len(engine.tokens()) == 2


def test_draining_refuses_the_new_finishes_the_old_and_says_goodbye(engine: Harness) -> None:
    engine.submit("old", max_tokens=5)
    engine.step()
    engine.tell(Drain())
    engine.submit("new")
    engine.core.run()
    engine.collect()
    assert engine.refused[0, "new"].code is RefusalCode.DRAINING
    assert engine.finish("old") is Finish.LENGTH
    assert engine.said[-1] == (None, Goodbye("drained"))


def test_what_still_runs_when_the_drain_is_over_ends_in_error(engine: Harness) -> None:
    engine.submit(max_tokens=50)
    engine.step()
    engine.core.drain()
    engine.clock.advance(31)
    engine.step()
    assert engine.finish() is Finish.ERROR


def test_counts_of_open_ended_and_unknown_requests(engine: Harness) -> None:
    engine.submit("done", max_tokens=2, n=2)
    engine.run()
    engine.submit("open", max_tokens=9)
    engine.step(2)
    engine.tell(AskCounts(["done", "open", "never"]))
    engine.step()
    counts = [message for _, message in engine.said if isinstance(message, Counts)]
    assert counts == [
        Counts("done", "boot-1", 3, 4, True),
        Counts("open", "boot-1", 3, 2, False),
        Counts("never"),
    ]
    engine.tell(AskRecorded(0, 99))
    engine.step(3)
    engine.tell(AskRecorded(1, 99))
    engine.step()
    pages = [message.counts for _, message in engine.said if isinstance(message, Recorded)]
    assert [[counts.request for counts in page] for page in pages] == [["done", "open"], ["open"]]


def test_one_step_frame_per_connection_and_pass(engine: Harness) -> None:
    for i in range(6):
        engine.submit(f"r{i}", max_tokens=3, connection=i % 2)
    engine.step()
    frames = [connection for connection, message in engine.said if isinstance(message, Step)]
    assert sorted(frames, key=str) == [0, 1]


def test_load_is_pushed_on_change_and_at_most_every_100_ms(engine: Harness) -> None:
    engine.step(3)
    assert len(engine.loads) == 1
    engine.submit(max_tokens=20, adapter="a2")
    engine.step(4)
    assert len(engine.loads) == 1
    engine.clock.advance(0.1)
    engine.step(2)
    assert len(engine.loads) == 2
    load = engine.loads[-1]
    assert (load.running, load.waiting, load.resident) == (1, 0, ["a2"])
    pool = engine.core.pool
    assert load.free_pages == pool.free_pages + pool.resting_pages


def test_invalid_fields_are_refused_by_name(engine: Harness) -> None:
    engine.tell(submit("t", [VOCAB]))
    engine.tell(submit("m", max_tokens=0))
    engine.step()
    assert "tokens" in engine.refused[0, "t"].detail
    assert "max_tokens=0" in engine.refused[0, "m"].detail


def test_one_choice_is_cancelled_and_the_others_go_on() -> None:
    engine = Harness()
    engine.submit(max_tokens=6, n=3)
    engine.step(2)
    engine.tell(Cancel("r1", [1]))
    engine.run()
    ends = {output.index: output.finish for output in engine.terminals()}
    assert ends == {0: Finish.LENGTH, 1: Finish.CANCELLED, 2: Finish.LENGTH}
    assert [len(engine.tokens(index=index)) for index in (0, 2)] == [6, 6]
    assert len(engine.tokens(index=1)) < 6
