"""Two simulated engines side by side, each by its own clock: whoever is behind goes on, so nothing
that one says comes too late for the other.
"""

import argparse
import math
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, pairwise

import msgspec

from engine.bench.handed import Answered, Run
from engine.bench.simulated import CPU, GPU, Costs, SimulatedClock, SimulatedEngine
from engine.bench.simulated_wire import SimulatedTransfer, SimulatedWire
from engine.bench.traffic import Arrival
from engine.config import EngineConfig
from engine.core import NO_GATEWAY, Heard
from engine.handing import GiverQueues
from engine.handoff.news import News
from engine.protocol import Forgo, Output, Refused, Sampling, Step, Submit, Ticket, ToGateway

TARGET_S = 0.025  # of a simulated GPU's pass with decodes, as the engine's own default
KINDS = {"cpu": CPU, "gpu": GPU}
TOKEN_BYTES = {"cpu": 46_080, "gpu": 131_072}  # of KV: the demo in 32 bits, an 8B model in 16
PAGE_TOKENS, WAITING, PATIENCE_S = 64, 65_536, 60.0
TAKES, SECRET = "tcp:taker:1", b"simulated engines"
IDLE_S = 1e-4  # that a clock goes beyond the other's where nothing happens
GREEDY = Sampling(temperature=0.0, seed=0)
GIVER, TAKER = 0, 1


class Half:
    """One of the engines, and what is to come to it."""

    def __init__(self, options: argparse.Namespace, costs: Costs, longest: int) -> None:
        page_s = TOKEN_BYTES[options.simulate] * PAGE_TOKENS / (options.link_gbs * 1e9)
        self.clock = SimulatedClock()
        self.wire = SimulatedWire(self.clock, self.tell, page_s=page_s)
        config = EngineConfig(
            model="simulated", max_num_seqs=options.max_num_seqs, page_tokens=PAGE_TOKENS,
            max_num_batched_tokens=max(options.batched_tokens, options.max_num_seqs),
            max_waiting=WAITING, handoff_listen=TAKES, handoff_timeout_s=PATIENCE_S,
        )  # fmt: skip
        engine = SimulatedEngine(
            config, costs, pages=options.max_num_seqs * 256, clock=self.clock, longest=longest,
            max_step_s=TARGET_S if costs is GPU else None, transfer=SimulatedTransfer(),
            wire=self.wire,
        )  # fmt: skip
        self.core = engine.core
        self.core.outbox.on_put = self._said
        self.said: list[tuple[float, ToGateway]] = []
        self._due: list[tuple[float, int, Heard]] = []
        self._order = count()

    def tell(self, at: float, news: News) -> None:
        self.hear(at, Heard(NO_GATEWAY, news))

    def hear(self, at: float, heard: Heard) -> None:
        heappush(self._due, (at, next(self._order), heard))

    @property
    def next_s(self) -> float:
        """When something happens here: now, while anything is open."""
        if self.core.book:
            return self.clock.now
        return max(self._due[0][0], self.clock.now) if self._due else math.inf

    def step(self, until_s: float) -> None:
        """One pass, or as far as something may happen."""
        self.clock.now = max(self.clock.now, min(self.next_s, until_s))
        while self._due and self._due[0][0] <= self.clock.now:
            self.core.inbox.put(heappop(self._due)[2], force=True)
        if not self.core.step():
            coming = self._due[0][0] if self._due else math.inf
            self.clock.now = max(self.clock.now, min(coming, until_s + IDLE_S))

    def _said(self) -> None:
        self.said += [(self.clock.now, said.message) for said in self.core.outbox.take()]


def simulate(options: argparse.Namespace, wanted: Sequence[Arrival], *, hand: bool) -> Run:
    """Every request whole at one engine, in turn; or its prompt at one, its answer at the other.

    Raises RuntimeError when nothing happens any more.
    """
    costs = KINDS[options.simulate]
    longest = max((len(one.prompt) + one.answer for one in wanted), default=1)
    halves = [Half(options, costs, longest) for _ in range(2)]
    halves[GIVER].wire.join(halves[TAKER].wire)
    audience = Audience(options, halves, hand=hand)
    waiting = list(enumerate(wanted))[::-1]
    while waiting or audience.open:
        now = min(half.next_s for half in halves)
        while waiting and waiting[-1][1].at_s <= now:
            audience.ask(*waiting.pop())
            now = min(half.next_s for half in halves)
        if math.isinf(now):
            if not waiting:
                raise RuntimeError("the simulated engines are idle, and requests are open")
            audience.ask(*waiting.pop())
            continue
        first, second = sorted(halves, key=lambda half: half.next_s)
        first.step(second.next_s)
        audience.listen()
    ended = max((one.ended_s or 0.0 for one in audience.answered), default=0.0)
    return Run(audience.answered, ended)


class Audience:
    """Who asks, and what they got."""

    def __init__(self, options: argparse.Namespace, halves: Sequence[Half], *, hand: bool) -> None:
        self._least, self._halves, self._hand = options.least_tokens, halves, hand
        self._queues = GiverQueues(options.queue_tokens)
        self._at: dict[str, tuple[int, Answered, list[float]]] = {}  # by request: whose, what
        self._given: dict[str, int] = {}  # tokens of prompts at the giver
        self.answered: list[Answered] = []

    @property
    def open(self) -> int:
        return len(self._at)

    def ask(self, number: int, arrival: Arrival) -> None:
        name, tokens = f"r{number}", len(arrival.prompt)
        handed = self._hand and tokens >= self._least and self._queues.free("giver", tokens)
        whose = TAKER if self._hand else number % 2
        one = Answered(arrival, handed=handed)
        self.answered.append(one)
        self._at[name] = (whose, one, [])
        submit = Submit(
            name, arrival.tenant, list(arrival.prompt), arrival.answer, sampling=GREEDY,
            ignore_eos=True, ticket=Ticket(name, SECRET) if handed else None,
        )  # fmt: skip
        self._halves[whose].hear(arrival.at_s, Heard(0, submit))
        if handed:
            self._queues.add("giver", tokens)
            self._given[name] = tokens
            given = msgspec.structs.replace(
                submit, ticket=Ticket(name, SECRET, TAKES), max_tokens=1
            )
            self._halves[GIVER].hear(arrival.at_s, Heard(0, given))

    def listen(self) -> None:
        for side, half in enumerate(self._halves):
            said, half.said = half.said, []
            for at, message in said:
                if isinstance(message, Refused):
                    raise RuntimeError(f"{message.request}: {message.detail}")
                for output in message.outputs if isinstance(message, Step) else ():
                    self._heard(side, at, output)

    def _heard(self, side: int, at: float, output: Output) -> None:
        whose, one, when = self._at.get(output.request, (side, None, []))
        if side != whose:
            if output.finish:
                self._queues.remove("giver", self._given.pop(output.request))
                if output.error:
                    self._halves[TAKER].hear(at, Heard(0, Forgo(output.request)))
            return
        if one is None:
            return
        for _ in output.tokens:
            when.append(at)
        if output.finish:
            one.first_s = when[0] - one.arrival.at_s
            one.gaps = [after - before for before, after in pairwise(when)]
            one.ended_s = at if len(when) == one.arrival.answer else None
            del self._at[output.request]
