"""Two engine cores on fakes, one that computes prompts for the other, driven pass by pass."""

from dataclasses import dataclass, field, replace
from functools import partial

from engine.core import Heard
from engine.handoff.news import News
from engine.protocol import Finish, Forgo, Role, Submit, Ticket
from engine.sequence import Sequence
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.harness import Harness, config, submit
from tests.fakes.grammars import FakeGrammars
from tests.fakes.handoffs import POOL, FakeTransfer, Link
from tests.fakes.proposer import FakeProposer
from tests.fakes.runner import alone, build

SECRET = b"s" * 16


def _running(engine: Harness) -> list[Sequence]:
    return engine.core.scheduler.runs


def ticket(name: str, to: str = "") -> Ticket:
    return Ticket(name, SECRET, to)


def given(wanted: Submit) -> Submit:
    """The same request, as the giver is told it."""
    assert wanted.ticket is not None
    return _replaced(wanted, max_tokens=1, n=1, ticket=replace_to(wanted.ticket))


def replace_to(of: Ticket) -> Ticket:
    return Ticket(of.name, of.secret, "tcp:taker:1")


def _replaced(wanted: Submit, **changes: object) -> Submit:
    fields = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
    return Submit(**(fields | changes))


@dataclass
class Pair:
    """``direct``: the taker reads the giver's pages where they lie."""

    ahead: bool = False
    direct: bool = False
    giver_pages: int = 64
    taker_pages: int = 64
    slots: int = 4
    grammars: bool = False
    drafts: bool = False  # both speculate, and guess wrong every third time
    settings: dict[str, object] = field(default_factory=dict)
    wanted: dict[str, Submit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        proposers = [FakeProposer(wrong=lambda position: position % 3 == 0) for _ in range(2)]
        gives, takes = (
            build(
                num_pages=pages,
                ahead=self.ahead,
                max_model_len=128,
                grammars=FakeGrammars() if self.grammars else None,
                proposer=proposer if self.drafts else None,
            )
            for pages, proposer in zip((self.giver_pages, self.taker_pages), proposers, strict=True)
        )
        if self.drafts:
            speculation = SpeculationSettings(method=Method.NGRAM, tokens=3)
            self.settings = {**self.settings, "speculation": speculation}
        giving = FakeTransfer(gives.memory, self.slots, pool=POOL if self.direct else b"")
        taking = FakeTransfer(takes.memory, self.slots, other=giving if self.direct else None)
        self.link = Link(taking, giving, self._tell_taker, self._tell_giver)
        gives.built = replace(gives.built, transfer=giving)
        takes.built = replace(takes.built, transfer=taking)
        self.giver = Harness(
            config(role=Role.PREFILL, **self.settings), gives, wire=self.link.giver
        )
        listening = {"role": Role.DECODE, "handoff_listen": "tcp:taker:1"}
        self.taker = Harness(config(**listening, **self.settings), takes, wire=self.link.taker)
        for proposer, engine in zip(proposers, (self.giver, self.taker), strict=True):
            proposer.running = partial(_running, engine)

    def _tell_taker(self, news: News) -> None:
        assert self.taker.core.inbox.put(Heard(-1, news))

    def _tell_giver(self, news: News) -> None:
        assert self.giver.core.inbox.put(Heard(-1, news))

    def submit(self, request: str, tokens: list[int], max_tokens: int = 6, **more: object) -> None:
        """To both, the taker first."""
        self.to_taker(request, tokens, max_tokens, **more)
        self.to_giver(request)

    def to_taker(self, request: str, tokens: list[int], count: int = 6, **more: object) -> None:
        wanted = submit(request, tokens, count, ticket=ticket(f"t-{request}"), **more)
        self.wanted[request] = wanted
        self.taker.tell(wanted)

    def to_giver(self, request: str, **changes: object) -> None:
        self.giver.tell(_replaced(given(self.wanted[request]), **changes))

    def forgo(self, request: str) -> None:
        self.taker.tell(Forgo(request))

    def step(self, times: int = 1, *, carry: int = 1_000) -> None:
        for _ in range(times):
            self.giver.step()
            self.link.carry(carry)
            self.taker.step()
            self.link.carry(carry)
            for engine in (self.giver, self.taker):
                engine.clock.advance(0.01)

    def run(self, steps: int = 400) -> None:
        for _ in range(steps):
            self.step()
            if not self.giver.core.book and not self.taker.core.book:
                self.step(2)
                return self.check()
        raise AssertionError(f"still open after {steps} steps")

    def check(self) -> None:
        """Nothing is left of what is over."""
        for engine in (self.giver, self.taker):
            assert engine.core.handoffs is not None
            assert not engine.core.handoffs.busy
            assert not engine.parts.runner.corrupted
            assert engine.core.pool.holdings("kv") == 0  # type: ignore[arg-type]
        assert sorted(self.link.free_in) == list(range(self.slots))
        assert sorted(self.link.free_out) == list(range(self.slots))

    def right(self, request: str) -> bool:
        """Its answer is what one engine alone would say."""
        wanted = self.wanted[request]
        adapter = wanted.adapter.digest if wanted.adapter else ""
        assert wanted.sampling.seed is not None
        tokens, _ = alone(
            wanted.tokens, wanted.max_tokens, seed=wanted.sampling.seed, adapter=adapter
        )
        return self.taker.tokens(request) == tokens

    def finish(self, request: str) -> Finish:
        return self.taker.finish(request)

    def computed(self, engine: Harness) -> int:
        return sum(plan.tokens for plan in engine.parts.runner.plans)

    def outcome(self, side: str, outcome: str) -> float:
        engine = self.giver if side == "gave" else self.taker
        labels = {"side": side, "outcome": outcome}
        value = engine.metrics.registry.get_sample_value("loratorio_engine_handoffs_total", labels)
        return value or 0.0
