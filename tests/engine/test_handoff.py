"""A prompt that another engine computes is answered as if it had been computed here, or it is
computed here: no ticket, whatever happens to it, fails a request or leaks a page."""

import pytest

from engine.protocol import Cancel, Finish, RefusalCode, Role, Sampling, Submit, Ticket
from engine.sequence import Phase
from tests.engine.handing import SECRET, Pair, ticket
from tests.engine.harness import Harness, submit
from tests.fakes.grammars import FakeGrammars
from tests.fakes.runner import build, logprob

LONG = [3 + i % 90 for i in range(45)]  # eleven pages and a token

BOTH_WAYS = [
    pytest.param({"ahead": ahead, "direct": direct}, id=f"{ahead=}-{direct=}")
    for ahead in (False, True)
    for direct in (False, True)
]


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize("prompt", [LONG, LONG[:44], LONG[:4], LONG[:3], LONG[:1]], ids=len)
def test_the_answer_is_the_same_and_the_prompt_is_computed_by_the_giver_alone(
    how: dict[str, bool], prompt: list[int]
) -> None:
    pair = Pair(**how)
    pair.submit("r", prompt, 6)
    pair.run()
    assert pair.right("r")
    assert pair.finish("r") is Finish.LENGTH
    assert pair.computed(pair.giver) == len(prompt)
    assert pair.computed(pair.taker) == 5  # the first token came along
    assert pair.outcome("took", "done") == pair.outcome("gave", "done") == 1


@pytest.mark.parametrize("how", BOTH_WAYS)
def test_adapters_seeds_and_several_choices_are_the_takers_own(how: dict[str, bool]) -> None:
    pair = Pair(**how)
    pair.submit("plain", LONG, 5, seed=1)
    pair.submit("tuned", LONG, 5, adapter="d2", seed=2, tenant="u")
    pair.submit("late", LONG, 5, adapter="d1", invocation=LONG[30:33], seed=3, tenant="v")
    pair.submit("many", LONG[:21], 5, n=3, seed=4, tenant="w")
    pair.run()
    assert pair.right("plain")
    assert pair.right("tuned")
    assert len({tuple(pair.taker.tokens("many", index)) for index in range(3)}) == 3
    assert pair.right("many")
    assert pair.outcome("took", "done") == 4


@pytest.mark.parametrize("ahead", [False, True])
def test_a_grammar_holds_the_token_that_came_and_goes_on_behind_it(ahead: bool) -> None:
    pair = Pair(ahead=ahead, grammars=True)
    pair.submit("r", LONG, 20, grammar="7/3", logprobs=0)
    pair.run()
    alone = Harness(parts=build(max_model_len=128, grammars=FakeGrammars()))
    alone.submit("r", LONG, 20, grammar="7/3", logprobs=0)
    alone.run()
    assert pair.taker.tokens("r") == alone.tokens("r")
    assert len(alone.tokens("r")) == 7
    told = [one for output in pair.taker.outputs[0, "r"] for one in output.logprobs or ()]
    assert told == [logprob(token) for token in alone.tokens("r")]
    assert pair.finish("r") is Finish.STOP
    assert pair.outcome("took", "done") == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_drafts_go_on_behind_the_token_that_came(ahead: bool) -> None:
    pair = Pair(ahead=ahead, drafts=True)
    for number in range(6):
        pair.submit(f"r{number}", [number + 3, *LONG], 30, seed=number)
        pair.run()
        assert pair.right(f"r{number}")
    assert any(chunk.drafts for plan in pair.taker.parts.runner.plans for chunk in plan.chunks)
    assert pair.outcome("took", "done") == 6


def test_what_either_engine_knows_already_is_neither_computed_nor_sent() -> None:
    pair = Pair()
    pair.submit("a", LONG, 3)
    pair.run()
    assert pair.taker.terminals("a")[0].usage.cached_tokens == 0  # type: ignore[union-attr]
    sent = pair.giver.metrics.registry.get_sample_value
    labels = {"side": "gave", "by": "tcp"}
    before = sent("loratorio_engine_handoff_bytes_total", labels)
    pair.submit("b", [*LONG[:40], 7, 8, 9], 3)
    pair.run()
    assert pair.right("b")
    assert pair.taker.terminals("b")[0].usage.cached_tokens == 40  # type: ignore[union-attr]
    assert sent("loratorio_engine_handoff_bytes_total", labels) == before + 100
    pair.submit("c", [*LONG[:40], 7, 8, 9], 3, tenant="another")
    pair.run()
    assert pair.taker.terminals("c")[0].usage.cached_tokens == 0  # type: ignore[union-attr]


def test_a_prompt_is_counted_once_and_by_the_engine_that_answers() -> None:
    pair = Pair()
    pair.submit("r", LONG, 4)
    pair.run()
    usage = pair.taker.terminals("r")[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(LONG), 4)
    assert pair.taker.record.read("r").prompt_tokens == len(LONG)
    assert pair.taker.record.read("r").completion_tokens == 4
    assert pair.giver.record.page(0, 10) == []


def test_pages_leave_while_the_prompt_is_computed() -> None:
    pair = Pair(settings={"max_num_batched_tokens": 8})
    pair.submit("r", LONG, 4)
    while pair.computed(pair.giver) < 24:
        pair.step()
    (sequence,) = pair.taker.core.book.find(0, "r").choices  # type: ignore[union-attr]
    assert sequence.computed >= 12
    assert sequence.phase is Phase.RUNNING
    pair.run()
    assert pair.right("r")


def test_others_find_the_pages_that_came() -> None:
    pair = Pair()
    pair.submit("a", LONG, 3)
    pair.run()
    pair.taker.submit("b", [*LONG, 5], 3, tenant="t")
    before = pair.computed(pair.taker)
    pair.taker.run()
    assert pair.computed(pair.taker) == before + 2 + 2


def test_a_giver_that_dies_half_way_costs_what_it_had_not_sent() -> None:
    pair = Pair(settings={"max_num_batched_tokens": 8})
    pair.submit("r", LONG, 6)
    while pair.computed(pair.giver) < 32:
        pair.step()
    pair.link.cut("t-r")
    pair.run()
    assert pair.right("r")
    assert pair.giver.finish("r") is Finish.ERROR
    assert 5 < pair.computed(pair.taker) < len(LONG)
    assert pair.outcome("took", "lost") == 1


def test_a_prompt_nobody_computes_is_computed_here_once_its_time_is_up() -> None:
    pair = Pair(settings={"handoff_timeout_s": 0.2})
    pair.to_taker("r", LONG, 4)
    pair.step(10)
    assert pair.computed(pair.taker) == 0
    pair.run()
    assert pair.right("r")
    assert pair.outcome("took", "expired") == 1


@pytest.mark.parametrize("steps", range(0, 14, 2))
def test_who_is_told_to_forgo_computes_the_rest_at_once(steps: int) -> None:
    pair = Pair(settings={"max_num_batched_tokens": 8})
    pair.submit("r", LONG, 4)
    pair.step(steps, carry=2)
    pair.forgo("r")
    pair.run()
    assert pair.right("r")
    assert len(pair.taker.terminals("r")) == len(pair.giver.terminals("r")) == 1


@pytest.mark.parametrize("steps", range(0, 14, 2))
@pytest.mark.parametrize("how", BOTH_WAYS)
def test_a_client_that_leaves_leaves_nothing_behind(how: dict[str, bool], steps: int) -> None:
    pair = Pair(settings={"max_num_batched_tokens": 8}, **how)  # type: ignore[arg-type]
    pair.submit("r", LONG, 40)
    pair.step(steps, carry=2)
    pair.taker.tell(Cancel("r"))
    pair.step(carry=2)
    pair.giver.tell(Cancel("r"))
    pair.run()
    assert pair.finish("r") is Finish.CANCELLED


def test_a_full_taker_lets_the_ticket_wait_and_takes_it_when_there_is_room() -> None:
    pair = Pair(taker_pages=16)
    pair.taker.submit("before", LONG[:30], 20, tenant="b", seed=1)
    pair.taker.step(5)
    pair.submit("r", LONG, 4)
    pair.step(6)
    assert pair.taker.core.book.find(0, "r").choices[0].phase is Phase.WAITING  # type: ignore[union-attr]
    assert pair.giver.core.pool.holdings("kv") == 12  # type: ignore[arg-type]
    pair.run()
    assert pair.right("r")
    assert pair.outcome("took", "done") == 1


def test_a_giver_whose_pages_nobody_takes_gives_them_up() -> None:
    pair = Pair(taker_pages=16, settings={"handoff_timeout_s": 0.3})
    pair.taker.submit("before", LONG[:16], 45, tenant="b", seed=1)
    pair.taker.step(5)
    pair.submit("r", LONG, 4)
    pair.run()
    assert pair.giver.finish("r") is Finish.ERROR
    assert pair.right("r")
    assert pair.outcome("gave", "expired") + pair.outcome("gave", "lost") == 1


def test_a_giver_whose_turn_for_it_does_not_come_computes_nothing_in_vain() -> None:
    pair = Pair(giver_pages=16, settings={"handoff_timeout_s": 0.15})
    pair.giver.submit("before", LONG[30::-1], 30, seed=1)
    pair.giver.step(3)
    pair.submit("r", LONG, 4)
    pair.run()
    assert pair.right("r")
    assert pair.giver.finish("r") is Finish.ERROR
    assert pair.computed(pair.giver) == 31 + 29
    assert pair.outcome("gave", "expired") == pair.outcome("took", "expired") == 1


def test_a_slow_network_holds_the_giver_back_and_nothing_is_buffered() -> None:
    pair = Pair(slots=2)
    pair.submit("r", LONG, 4)
    for _ in range(60):
        pair.step(carry=1)
        assert len([name for name, _ in pair.link.to_taker if name == "page"]) <= 2
    pair.run()
    assert pair.right("r")


def test_pages_of_another_version_of_the_adapter_are_not_taken() -> None:
    pair = Pair()
    pair.to_taker("r", LONG, 4, adapter="d1")
    other = submit(adapter="d2").adapter
    pair.to_giver("r", adapter=other)
    pair.run()
    assert pair.right("r")
    assert pair.outcome("took", "lost") == 1
    assert pair.computed(pair.taker) == len(LONG) + 3


def test_a_first_token_that_stops_the_answer_stops_it() -> None:
    pair = Pair()
    first = Pair()
    first.submit("r", LONG, 1)
    first.run()
    (token,) = first.taker.tokens("r")
    pair.submit("r", LONG, 6, stop_tokens=[token])
    pair.run()
    (terminal,) = pair.taker.terminals("r")
    assert (terminal.finish, terminal.stop_token) == (Finish.STOP, token)
    assert pair.computed(pair.taker) == 0


def test_a_grant_holds_for_the_token_that_came_too() -> None:
    pair = Pair(settings={"grant_timeout_s": 5.0})
    pair.submit("r", LONG, 4, granted=1)
    pair.step(20)
    assert len(pair.taker.tokens("r")) == 1
    pair.taker.grant(4, "r")
    pair.run()
    assert pair.right("r")


@pytest.mark.parametrize(
    ("to", "changes", "words"),
    [
        ("", {"ticket": Ticket("x", b"short")}, "ticket.secret has 5 bytes"),
        ("", {"sampling": Sampling()}, "sampling.seed"),
        ("", {"prompt_logprobs": 1}, "computed here"),
        ("giver", {"max_tokens": 2}, "max_tokens=1, not 1 and 2"),
        ("giver", {"ticket": Ticket("x", SECRET)}, "this engine takes no pages"),
    ],
)
def test_a_ticket_that_cannot_be_is_refused_by_its_field(
    to: str, changes: dict[str, object], words: str
) -> None:
    pair = Pair()
    pair.to_taker("r", LONG, 4)
    wanted = {"ticket": ticket("x", to), "tokens": LONG, "max_tokens": 1, **changes}
    engine = pair.giver if to else pair.taker
    engine.submit("bad", **wanted)  # type: ignore[arg-type]
    engine.step()
    refused = engine.refused[0, "bad"]
    assert refused.code is RefusalCode.INVALID
    assert words in refused.detail


def test_an_engine_without_handoffs_refuses_tickets() -> None:
    engine = Harness()
    engine.tell(Submit("r", "t", LONG, 4, Sampling(seed=1), ticket=ticket("x")))
    engine.step()
    assert "takes no pages" in engine.refused[0, "r"].detail


def test_roles_are_told_in_the_settings() -> None:
    assert Pair().giver.config.role is Role.PREFILL
    assert not Pair().giver.config.takes
    assert Pair().taker.config.takes
