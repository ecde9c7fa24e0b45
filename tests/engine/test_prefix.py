"""What was computed is found again by exactly those who may find it, and leaves from its ends."""

import pytest

from engine.pages import Kind
from engine.protocol import TokenLogprobs
from tests.engine.harness import Harness, config
from tests.fakes.runner import VOCAB, alone, build

SHARED = [3 + i % 90 for i in range(40)]  # ten pages of four tokens


def own(number: int, tokens: int) -> list[int]:
    return [5 + number] * tokens


def harness(**changes: object) -> Harness:
    return Harness(
        config(max_num_batched_tokens=200, **changes),
        build(num_pages=64, max_model_len=120),
    )


def computed(engine: Harness, name: str) -> int:
    """Prompt tokens that were not found."""
    usage = engine.terminals(name)[0].usage
    assert usage
    return usage.prompt_tokens - usage.cached_tokens


def distinct_pages(engine: Harness) -> int:
    return engine.core.pool.num_pages - engine.core.pool.free_pages


def test_three_requests_that_share_ten_pages_hold_them_once() -> None:
    engine = harness()
    for number, pages in enumerate((5, 10, 3)):
        engine.submit(f"r{number}", SHARED + own(number, 4 * pages - 1), 3)
    engine.step(2)
    assert engine.core.scheduler.running == 3
    assert distinct_pages(engine) == 28
    engine.run()
    for number, pages in enumerate((5, 10, 3)):
        prompt = SHARED + own(number, 4 * pages - 1)
        assert engine.tokens(f"r{number}") == alone(prompt, 3, seed=7)[0]
    assert engine.core.pool.holdings(Kind.KV) == 0


def test_the_second_of_two_at_once_waits_for_what_the_first_computes() -> None:
    engine = harness()
    for name in "ab":
        engine.submit(name, SHARED, 3)
    engine.run()
    assert (computed(engine, "a"), computed(engine, "b")) == (40, 4)
    assert sum(plan.tokens for plan in engine.parts.runner.plans) == 40 + 2 + 4 + 2


def test_a_conversation_goes_on_where_it_ended() -> None:
    engine = harness()
    engine.submit("first", SHARED, 9)
    engine.run()
    told = [*SHARED, *engine.tokens("first")]
    engine.submit("second", [*told, 5, 6], 4)
    engine.run()
    assert engine.terminals("second")[0].usage.cached_tokens == 48  # type: ignore[union-attr]
    assert engine.tokens("second") == alone([*told, 5, 6], 4, seed=7)[0]


@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 40, 41])
def test_the_last_token_is_always_computed(length: int) -> None:
    engine = harness()
    for name in ("first", "again"):
        engine.submit(name, SHARED[:4] * 10 + [9], 1) if length == 41 else engine.submit(
            name, SHARED[:length], 1
        )
        engine.run()
    assert computed(engine, "again") == (length - 1) % 4 + 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"tenant": "t1"}, {"tenant": "t2"}, id="tenants"),
        pytest.param({"adapter": "a1"}, {"adapter": "b1"}, id="adapters"),
        pytest.param({"adapter": "a1"}, {}, id="adapter_then_base"),
        pytest.param({}, {"adapter": "a1"}, id="base_then_adapter"),
        pytest.param({"tenant": "t1", "public_tokens": 40},
                     {"tenant": "t2", "adapter": "a1", "public_tokens": 40}, id="public_is_base"),
        pytest.param({"tenant": "t1", "public_tokens": 40}, {"tenant": "t2"}, id="undeclared"),
        pytest.param({}, {"prompt_logprobs": 0}, id="prompt_logprobs"),
    ],
)  # fmt: skip
def test_nothing_is_found_that_another_key_computed(
    first: dict[str, object], second: dict[str, object]
) -> None:
    engine = harness()
    engine.submit("first", SHARED, 4, **first)
    engine.run()
    engine.submit("second", SHARED, 4, **second)
    engine.run()
    assert computed(engine, "second") == 40
    adapter = str(second.get("adapter", ""))
    assert engine.tokens("second") == alone(SHARED, 4, seed=7, adapter=adapter)[0]


def test_a_public_prefix_is_shared_between_tenants_and_nothing_behind_it() -> None:
    engine = harness()
    for tenant in ("t1", "t2"):
        engine.submit(tenant, [*SHARED, *own(1, 9)], 4, tenant=tenant, public_tokens=22)
        engine.run()
    assert engine.terminals("t2")[0].usage.cached_tokens == 20  # type: ignore[union-attr]
    engine.submit("again", [*SHARED, *own(1, 9)], 4, tenant="t2", public_tokens=22)
    engine.run()
    assert engine.terminals("again")[0].usage.cached_tokens == 48  # type: ignore[union-attr]


INVOKED = [*SHARED[:22], 2, 2, 2, *SHARED[25:]]  # an aLoRA acts from the middle of page 5


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        pytest.param({}, {"adapter": "a1"}, 20, id="base_then_alora"),
        pytest.param({"adapter": "a1"}, {}, 20, id="alora_then_base"),
        pytest.param({"adapter": "a1"}, {"adapter": "b1"}, 20, id="two_aloras"),
        pytest.param({"adapter": "a1"}, {"adapter": "a1"}, 36, id="itself"),
        pytest.param({}, {"adapter": "a1", "tenant": "t2"}, 0, id="tenants"),
        pytest.param({"adapter": "a1"}, {"tenant": "t2"}, 0, id="tenants_the_other_way"),
        pytest.param({"public_tokens": 18}, {"adapter": "a1", "tenant": "t2", "public_tokens": 18},
                     16, id="public"),
        pytest.param({}, {"adapter": "a1", "invocation": [1, 1]}, 36, id="not_invoked"),
        pytest.param({}, {"adapter": "a1", "invocation": []}, 0, id="plain"),
        pytest.param({"adapter": "a1", "invocation": [SHARED[0]]}, {}, 0, id="from_the_start"),
    ],
)  # fmt: skip
def test_until_it_is_invoked_an_alora_uses_what_the_base_computed(
    first: dict[str, object], second: dict[str, object], found: int
) -> None:
    engine = harness()
    for name, keys in (("first", first), ("second", second)):
        engine.submit(name, INVOKED, 4, **{"invocation": [2, 2, 2], **keys})
        engine.run()
    usage = engine.terminals("second")[0].usage
    assert usage is not None
    assert usage.cached_tokens == found
    adapter = "" if second.get("invocation") == [1, 1] else str(second.get("adapter", ""))
    assert engine.tokens("second") == alone(INVOKED, 4, seed=7, adapter=adapter)[0]


def test_an_alora_that_is_retired_leaves_the_base_s_pages() -> None:
    engine = harness()
    for adapter in ("a1", ""):
        engine.submit(adapter or "base", INVOKED, 4, adapter=adapter, invocation=[2, 2, 2])
        engine.run()
        engine.core.seating.retire("a1")
    assert engine.terminals("base")[0].usage.cached_tokens == 20  # type: ignore[union-attr]


def test_without_prefix_caching_nothing_rests() -> None:
    engine = harness(enable_prefix_caching=False)
    for name in ("first", "again"):
        engine.submit(name, SHARED, 4)
        engine.run()
        assert computed(engine, name) == 40
    assert engine.core.pool.free_pages == engine.core.pool.num_pages


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 17, 20])
def test_choices_compute_their_prompt_once_and_write_to_their_own_pages(
    length: int, caching: bool
) -> None:
    engine = harness(enable_prefix_caching=caching)
    engine.submit(tokens=SHARED[:length], max_tokens=6, n=3)
    engine.run()
    prompts = sum(p.tokens for p in engine.parts.runner.plans) - 3 * 5
    assert prompts == length + 2  # each further choice computes the last token alone
    tokens = [engine.tokens(index=index) for index in range(3)]
    assert len({tuple(t) for t in tokens}) == 3
    assert engine.terminals()[0].usage.prompt_tokens == length  # type: ignore[union-attr]
    assert engine.terminals()[0].usage.cached_tokens == 0  # type: ignore[union-attr]


def test_what_rests_makes_way_from_its_ends() -> None:
    engine = Harness(config(max_num_batched_tokens=200), build(num_pages=12, max_model_len=48))
    engine.submit("first", SHARED, 1)
    engine.run()
    engine.submit("other", own(1, 20), 1)
    engine.run()
    assert engine.core.seating.prefix.evicted == 3
    engine.submit("again", SHARED, 1)
    engine.run()
    assert engine.terminals("again")[0].usage.cached_tokens == 28  # type: ignore[union-attr]


def test_a_failed_row_leaves_nothing_to_be_found() -> None:
    engine = harness()
    poison = [*SHARED[:8], VOCAB - 1, 3, 3, 3, 3]
    engine.submit("good", SHARED[:8], 1)
    engine.run()
    engine.parts.runner.poisoned = {VOCAB - 1}
    engine.submit("bad", poison, 1)
    engine.run()
    engine.parts.runner.poisoned = set()
    engine.submit("again", poison, 1)
    engine.run()
    assert engine.terminals("bad")[0].error
    assert computed(engine, "again") == len(poison)


def test_a_preempted_sequence_finds_what_is_left_of_its_own() -> None:
    engine = Harness(parts=build(num_pages=6))
    for name, prompt in (("old", [3] * 4), ("new", [4] * 4)):
        engine.submit(name, prompt, 16)
    engine.run()
    assert engine.core.scheduler.preemptions >= 1
    usage = engine.terminals("new")[0].usage
    assert usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (4, 0)  # its own work is not a find
    assert engine.tokens("new") == alone([4] * 4, 16, seed=7)[0]


def test_prompt_logprobs_are_complete_though_the_prompt_was_computed_before() -> None:
    engine = harness()
    engine.submit("first", SHARED, 1)
    engine.run()
    engine.submit("asks", SHARED, 1, prompt_logprobs=0)
    engine.run()
    (output,) = engine.outputs[0, "asks"]
    assert output.prompt_logprobs == [TokenLogprobs(-float(t)) for t in SHARED[1:]]


def test_a_tenant_over_its_share_waits_and_others_do_not() -> None:
    engine = Harness(config(max_num_batched_tokens=100, max_tenant_share=0.5, max_num_seqs=20,
                            enable_prefix_caching=False), build(num_pages=20))  # fmt: skip
    for number in range(4):
        engine.submit(f"greedy{number}", own(number, 16), 4, tenant="greedy")
    engine.submit("modest", own(9, 16), 4, tenant="modest")
    engine.step()
    held = {t: engine.core.pool.share_of(t) for t in ("greedy", "modest")}
    assert held == {"greedy": 8, "modest": 4}
    engine.run()
    assert all(len(engine.tokens(f"greedy{number}")) == 4 for number in range(4))
