"""Any trace of arrivals, departures, loads, faults and page shortage keeps every promise.

After each step no page is leaked or held twice and no budget is passed. At the end every
accepted request has exactly one terminal per choice, or one Refused, and its tokens are those
of a run alone (a prefix of them, where it was ended early).
"""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.activation import active_from
from engine.admission import Limits
from engine.pages import Kind
from engine.protocol import Finish, Output, RefusalCode, Submit
from engine.reception import derive_seed
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.harness import Harness, config, submit
from tests.fakes.proposer import FakeProposer
from tests.fakes.runner import VOCAB, alone, build

pytestmark = pytest.mark.slow

POISON = VOCAB - 1  # a prompt that holds it fails its row
ADAPTERS = ["", "", "a1", "b2", "c3", "z9"]  # z9 is larger than the smallest pools
INVOKED_BY = {"b2": (7,), "c3": (5, 6)}  # aLoRAs
NATURAL = (Finish.STOP, Finish.LENGTH)
GATEWAYS = st.integers(0, 2)

prompts = st.lists(st.integers(3, VOCAB - 2), min_size=1, max_size=24) | st.builds(
    lambda shared, own: [7] * shared + own,  # prompts that begin alike
    st.integers(1, 20),
    st.lists(st.integers(3, 6), min_size=0, max_size=4),
)


def _acting(message: Submit) -> str:
    """The adapter that an answer is of: an aLoRA which nothing invokes is the base."""
    adapter = message.adapter
    if adapter is None:
        return ""
    invoked = active_from(message.tokens, adapter.invocation) < len(message.tokens)
    return adapter.digest if invoked else ""


@dataclass
class Opened:
    submit: Submit
    poisoned: bool


class Traces(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(6, 24),
        seqs=st.integers(1, 6),
        tokens=st.integers(6, 20),
        delay=st.integers(0, 3),
        waiting=st.sampled_from([2, 50]),
        ahead=st.booleans(),
        caching=st.sampled_from([True, True, False]),
        share=st.sampled_from([1.0, 0.5]),
        slots=st.sampled_from([0, 3, 50]),
        drafts=st.sampled_from([0, 1, 4]),
        wrong=st.integers(2, 5),
    )
    def start(
        self, pages: int, seqs: int, tokens: int, delay: int, waiting: int, ahead: bool,
        caching: bool, share: float, slots: int, drafts: int, wrong: int,
    ) -> None:  # fmt: skip
        proposer = FakeProposer(lambda: self.engine.core.scheduler.runs,
                                lambda position: position % wrong == 0,
                                lambda position: position % 6) if drafts else None  # fmt: skip
        speculation = SpeculationSettings(method=Method.NGRAM, tokens=max(drafts, 1))
        self.engine = Harness(
            config(max_num_seqs=seqs, max_num_batched_tokens=tokens, max_waiting=waiting,
                   enable_prefix_caching=caching, max_tenant_share=share, fairness_quantum=16,
                   speculation=speculation, max_adapter_loads=2, grant_timeout_s=5.0,
                   grant_ahead=2, grant_step=3),
            build(num_pages=pages, page_tokens=4, max_model_len=40, ahead=ahead, slots=slots,
                  proposer=proposer),
        )  # fmt: skip
        self.engine.parts.runner.passes = lambda: self.engine.clock.advance(0.001)
        self.engine.parts.host.delay = delay
        self.engine.parts.runner.poisoned = {POISON}
        self.opened: dict[tuple[int, str], Opened] = {}
        self.broken = False

    @rule(
        gateway=GATEWAYS,
        prompt=prompts,
        most=st.integers(1, 16),
        adapter=st.sampled_from(ADAPTERS),
        n=st.sampled_from([1, 1, 2, 3]),
        granted=st.sampled_from([None, None, 0, 4]),
        seed=st.integers(-9, 9),
        extra=st.sampled_from(["", "eos", "poison", "late", "first", "logprobs"]),
        public=st.sampled_from([0, 0, 9]),
    )
    def arrive(
        self, gateway: int, prompt: list[int], most: int, adapter: str, n: int,
        granted: int | None, seed: int, extra: str, public: int,
    ) -> None:  # fmt: skip
        name = f"r{len(self.opened)}"
        message = submit(
            name, [*prompt, POISON] if extra == "poison" else prompt, most,
            adapter=adapter, invocation=INVOKED_BY.get(adapter, ()), tenant=f"t{gateway}",
            seed=seed, n=n, granted=granted, ignore_eos=extra != "eos",
            deadline_ms=2000 if extra == "late" else None,
            prompt_logprobs=0 if extra == "logprobs" else None, public_tokens=public,
            priority=1 if extra == "first" else 0, stop_tokens=[4, 5] if extra == "eos" else [],
        )  # fmt: skip
        self.opened[gateway, name] = Opened(message, extra == "poison")
        self.engine.tell(message, gateway)

    @rule(gateway=GATEWAYS, number=st.integers(0, 40))
    def cancel(self, gateway: int, number: int) -> None:
        self.engine.cancel(f"r{number}", gateway)

    @rule(gateway=GATEWAYS, number=st.integers(0, 40), granted=st.integers(0, 60))
    def grant(self, gateway: int, number: int, granted: int) -> None:
        self.engine.grant(granted, f"r{number}", gateway)

    @rule(gateway=GATEWAYS)
    def vanish(self, gateway: int) -> None:
        self.engine.gone(gateway)

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.engine.clock.advance(seconds)

    @rule(name=st.sampled_from(["a1", "b2", "c3"]), kind=st.integers(0, 3))
    def spoil_an_adapter(self, name: str, kind: int) -> None:
        parts = self.engine.parts
        for i, spoiled in enumerate(
            (parts.host.missing, parts.host.invalid, parts.memory.unusable)
        ):
            (spoiled.add if i == kind else spoiled.discard)(name)

    @rule()
    def break_one_pass(self) -> None:
        self.engine.parts.runner.broken = lambda plan: RuntimeError("made to fail")
        self.engine.step()
        self.engine.parts.runner.broken = lambda plan: None

    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        self.engine.step(times)

    @invariant()
    def nobody_sees_foreign_memory(self) -> None:
        assert not self.engine.parts.runner.corrupted

    @invariant()
    def no_budget_is_passed(self) -> None:
        settings = self.engine.config
        for plan in self.engine.parts.runner.plans:
            assert plan.tokens <= settings.max_num_batched_tokens
            assert len(plan.chunks) <= settings.max_num_seqs
            assert all(len(chunk.tokens) for chunk in plan.chunks)
        self.engine.parts.runner.plans.clear()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):  # far more passes than all that is open can need
            for request in self.engine.core.book:
                self.engine.grant(10_000, request.submit.request, request.connection)
            self.engine.step()
            if not self.engine.core.book:
                break
        assert not self.engine.core.book, "somebody starved"
        self.nobody_sees_foreign_memory()
        assert self.engine.core.pool.holdings(Kind.KV) == 0
        for key, opened in self.opened.items():
            self.check(key, opened)

    def check(self, key: tuple[int, str], opened: Opened) -> None:
        message, outputs = opened.submit, self.engine.outputs[key]
        if refused := self.engine.refused.get(key):
            assert not any(output.tokens or output.finish for output in outputs)
            assert refused.code is not RefusalCode.INVALID
            return
        for index in range(message.n):
            mine = [output for output in outputs if output.index == index]
            assert [output.finish is not None for output in mine] == [False] * (len(mine) - 1) + [
                True
            ]
            self.check_choice(opened, index, mine)

    def check_choice(self, opened: Opened, index: int, outputs: list[Output]) -> None:
        message, last = opened.submit, outputs[-1]
        limits = Limits(vocab_size=VOCAB, max_model_len=40, num_pages=99, page_tokens=4,
                        adapters=True)  # fmt: skip
        stops = () if message.ignore_eos else (2, *message.stop_tokens)
        assert message.sampling.seed is not None
        expected, stop = alone(
            message.tokens, limits.admit(message), stops=stops,
            seed=derive_seed(message.sampling.seed, index),
            adapter=_acting(message),
        )  # fmt: skip
        tokens = [token for output in outputs for token in output.tokens]
        assert tokens == expected[: len(tokens)]
        assert last.usage
        assert last.usage.completion_tokens == len(tokens) + (last.stop_token is not None)
        assert not (opened.poisoned and last.finish in NATURAL)
        if last.finish in NATURAL:
            assert (tokens, last.stop_token) == (expected, stop)


Traces.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTraces = Traces.TestCase
