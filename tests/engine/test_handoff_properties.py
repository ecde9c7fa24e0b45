"""Whatever happens to handoffs, in any order: every choice ends once, says what one engine alone
would have said, and no page, slot or ticket is left over."""

import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.protocol import Cancel, Finish, Output
from tests.engine.handing import Pair
from tests.engine.harness import Harness
from tests.fakes.runner import alone

SHARED = [3 + i * 7 % 90 for i in range(40)]
ADAPTERS = ("", "d1", "d2")


class Handing(RuleBasedStateMachine):
    """Small pools, few slots: sequences yield, pages are evicted, the wire is often full."""

    @initialize(
        ahead=st.booleans(), direct=st.booleans(), giver=st.sampled_from([24, 60]),
        taker=st.sampled_from([24, 60]), slots=st.sampled_from([1, 4]), drafts=st.booleans(),
    )  # fmt: skip
    def start(
        self, *, ahead: bool, direct: bool, giver: int, taker: int, slots: int, drafts: bool
    ) -> None:
        self.pair = Pair(
            ahead=ahead, direct=direct, giver_pages=giver, taker_pages=taker, slots=slots,
            drafts=drafts, settings={"handoff_timeout_s": 0.5},
        )  # fmt: skip
        self.dice = random.Random(0)
        self.asked: list[str] = []

    @rule(
        shared=st.integers(0, 40), own=st.integers(1, 25), count=st.integers(1, 12),
        adapter=st.sampled_from(ADAPTERS), tenant=st.sampled_from("uv"),
        n=st.sampled_from([1, 1, 3]),
        to_giver=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def ask(
        self,
        shared: int,
        own: int,
        count: int,
        adapter: str,
        tenant: str,
        n: int,
        *,
        to_giver: bool,
    ) -> None:
        name = f"r{len(self.asked)}"
        tokens = SHARED[:shared] + [3 + self.dice.randrange(90) for _ in range(own)]
        more = {"adapter": adapter, "tenant": tenant, "n": n, "seed": self.dice.randrange(99)}
        self.pair.to_taker(name, tokens, count, **more)
        if to_giver:
            self.pair.to_giver(name)
        self.asked.append(name)

    @rule(tokens=st.integers(1, 20), count=st.integers(5, 30))
    def crowd(self, tokens: int, count: int) -> None:
        """Work of its own at the taker, or at the giver."""
        engine = self.dice.choice([self.pair.giver, self.pair.taker])
        name = f"own{self.dice.randrange(10**9)}"
        engine.submit(name, SHARED[:tokens], count, tenant="own", seed=1)

    @rule(times=st.integers(1, 8), carry=st.sampled_from([0, 1, 3, 1000]))
    def go_on(self, times: int, carry: int) -> None:
        self.pair.step(times, carry=carry)

    @rule(times=st.integers(1, 4))
    def one_alone(self, times: int) -> None:
        self.dice.choice([self.pair.giver, self.pair.taker]).step(times)

    @rule(
        which=st.integers(0, 50), how=st.sampled_from(["cut", "forgo", "leave", "taker", "giver"])
    )
    def disturb(self, which: int, how: str) -> None:
        if not self.asked:
            return
        name = self.asked[which % len(self.asked)]
        match how:
            case "cut":
                self.pair.link.cut(f"t-{name}")
            case "forgo":
                self.pair.forgo(name)
            case _:
                if how in ("leave", "taker"):
                    self.pair.taker.tell(Cancel(name))
                if how in ("leave", "giver"):
                    self.pair.giver.tell(Cancel(name))

    @rule(seconds=st.sampled_from([0.1, 0.6]))
    def wait(self, seconds: float) -> None:
        for engine in (self.pair.giver, self.pair.taker):
            engine.clock.advance(seconds)

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        self.pair.run(2000)
        for name in self.asked:
            self._check_answer(name)
        for engine in (self.pair.giver, self.pair.taker):
            self._check_ends(engine)

    def _check_answer(self, name: str) -> None:
        wanted = self.pair.wanted[name]
        ends = self.pair.taker.terminals(name)
        assert sorted(end.index for end in ends) == list(range(wanted.n))
        seed = wanted.sampling.seed
        assert seed is not None
        adapter = wanted.adapter.digest if wanted.adapter else ""
        said = self.pair.taker.tokens(name)
        expected, _ = alone(wanted.tokens, wanted.max_tokens, seed=seed, adapter=adapter)
        assert said == expected[: len(said)]
        whole = {end.index for end in ends if end.finish is Finish.LENGTH}
        assert (0 not in whole) or said == expected
        assert {end.finish for end in ends} <= {Finish.LENGTH, Finish.CANCELLED}
        if whole:
            recorded = self.pair.taker.record.read(name)
            assert recorded.prompt_tokens == len(wanted.tokens)
            assert recorded.cached_tokens < len(wanted.tokens)
            assert recorded.completion_tokens == sum(_generated(end) for end in ends)

    def _check_ends(self, engine: Harness) -> None:
        """At most one terminal a choice, whatever it is."""
        key: Callable[[Output], int] = lambda end: end.index  # noqa: E731
        for (_, name), outputs in engine.outputs.items():
            ends = [key(output) for output in outputs if output.finish]
            assert len(ends) == len(set(ends)), name
            assert name not in {refused for _, refused in engine.refused}


def _generated(end: Output) -> int:
    return end.usage.completion_tokens if end.usage else 0


TestHandoffs = Handing.TestCase
TestHandoffs.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
