"""The engine's loop: intake → plan → compute → emit, once per forward pass.

It never waits for a gateway, a disk or an adapter: it looks at its inbox between passes, and
sleeps there only when nothing can be computed. Every accepted request ends in exactly one
terminal per choice, whatever raises. Everything here belongs to the loop's thread; the wire's
thread is met at the two mailboxes.

Where a runner computes beside the host (``Built.ahead``), the next pass is planned and launched
while one is under way, before its tokens are known; only then are they waited for. A sequence that
turns out to have ended is then in one pass too many, whose result for it is dropped. The tokens
are the same either way. While drafts are verified (``speculation``) no pass runs ahead: what comes
next depends on how many of them are kept.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from adapters.errors import AdapterMissing, StoreUnavailable
from engine.book import Book
from engine.built import Built
from engine.bulletin import LOAD_INTERVAL_S, Bulletin
from engine.collector import Collector
from engine.config import EngineConfig
from engine.counts import CountRecord
from engine.errors import AdapterUnknown, WireStalled
from engine.handoff.handoffs import Handoffs
from engine.handoff.news import News, Wire
from engine.harvest import Harvest
from engine.mailbox import Mailbox
from engine.masking import Begun, Masking
from engine.metrics import EngineMetrics
from engine.observer import Observer
from engine.planned import Plan
from engine.protocol import (
    AskCounts,
    AskRecorded,
    Cancel,
    Drain,
    Finish,
    Forgo,
    Goodbye,
    Grant,
    Prefetch,
    Recorded,
    RefusalCode,
    Retire,
    Submit,
    ToGateway,
)
from engine.reception import Reception, limits_of
from engine.request import Request
from engine.residency import P
from engine.scheduler import Scheduler
from engine.seating import Seating
from engine.speculation.payoff import Payoff
from engine.speculation.speculation import Judge, Speculation
from engine.traces import RequestTraces
from engine.under_way import UnderWay, guarded

STALL_S = 10.0  # how long the wire may leave a full outbox
POLL_S = 0.002  # between looks at loads under way
IDLE_S = 0.25
NO_GATEWAY = -1  # in place of a connection, of what other engines say

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gone:
    """A connection ended."""


@dataclass(frozen=True, slots=True)
class Heard:
    connection: int
    message: (
        Submit
        | Forgo
        | Grant
        | Cancel
        | Prefetch
        | Retire
        | Drain
        | AskCounts
        | AskRecorded
        | Gone
        | News
    )


@dataclass(frozen=True, slots=True)
class Said:
    connection: int | None  # None: all of them
    message: ToGateway  # a connection ends after Goodbye


class Core(Generic[P]):
    def __init__(
        self,
        config: EngineConfig,
        built: Built[P],
        *,
        boot: str,
        record: CountRecord,
        metrics: EngineMetrics,
        clock: Callable[[], float] = time.monotonic,
        entropy: random.Random | None = None,
        traces: RequestTraces | None = None,
        wire: Wire | None = None,
        judge: Judge | None = None,
    ) -> None:
        """``wire``: of handoffs; None where this engine takes part in none. ``judge``: of drafts;
        None: what they bring is measured."""
        self.inbox: Mailbox[Heard] = Mailbox(4096)
        self.outbox: Mailbox[Said] = Mailbox(4096)
        self.seating = Seating(config, built, observer=metrics, clock=clock)
        self.pool, self.residency = self.seating.pool, self.seating.residency
        self.scheduler = Scheduler(
            config, self.seating, max_step_s=built.max_step_s, pass_sizes=built.pass_sizes,
            speculation=_speculation(config, built, metrics, judge), observer=metrics,
            clock=clock,
        )  # fmt: skip
        self.book = Book(
            boot, record, metrics,
            release=self.scheduler.remove, say=self._say, clock=clock, traces=traces,
        )  # fmt: skip
        self._masking = Masking(built.grammars, self.book, metrics)
        self._harvest = Harvest(config, self.scheduler, self.book, metrics, clock=clock)
        self._bulletin = Bulletin(self.scheduler, self.seating, metrics)
        self._config, self._runner = config, built.runner
        self._ahead = built.ahead
        self._under_way: UnderWay | None = None
        self._metrics, self._clock = metrics, clock
        self.handoffs = self._harvest.handoffs = self._handoffs(built, wire)
        limits = limits_of(
            config, built, adapters=self.residency.enabled, grammars=self._masking.enabled,
            handoffs=wire is not None,
        )  # fmt: skip
        self._reception = Reception(
            config, limits, self.scheduler, self.book, self._masking, metrics,
            handoffs=self.handoffs, eos=built.eos, say=self._say, clock=clock,
            entropy=entropy or random.SystemRandom(),
        )  # fmt: skip
        self._draining_since: float | None = None
        self._came_round = self._clock()
        self._collector = Collector(clock)

    def _handoffs(self, built: Built[P], wire: Wire | None) -> Handoffs | None:
        if wire is None or built.transfer is None:
            return None
        self._metrics.page_bytes = built.transfer.page_bytes
        return Handoffs(
            wire, built.transfer, self.seating, timeout_s=self._config.handoff_timeout_s,
            observer=self._metrics, deliver=self._harvest.deliver, finish=self._harvest.end_given,
        )  # fmt: skip

    def run(self) -> None:
        """Serve until drained. Raises DeviceLost or WireStalled; nothing else is expected."""
        while not self._drained:
            if self.step():
                self._collector.worked()
            else:
                self._collector.rests()
                self._hear(self.inbox.take(self._patience()))
        self._flush()
        self._say(None, Goodbye("drained"))

    def drain(self) -> None:
        """Take nothing more, finish what is open, then return from ``run``."""
        if self._draining_since is None:
            self._draining_since = self._clock()

    @property
    def draining(self) -> bool:
        return self._draining_since is not None

    @property
    def still_s(self) -> float:
        """Seconds since the loop last came round. For any thread."""
        return self._clock() - self._came_round

    def cancel(self, request: Request) -> None:
        self.book.end(request, Finish.CANCELLED)

    def step(self) -> bool:
        """One round of the loop; False when there was nothing to compute."""
        self._came_round = self._clock()
        self._hear(self.inbox.take())
        self._expire(self._clock())
        self._fail_loads()
        self._masking.refuse_invalid()
        caught_up = (self.scheduler.speculates or self._verifies) and self._catch_up()
        plan = self.scheduler.plan()
        self._refuse_misfits(plan)
        if self.handoffs:
            self.handoffs.planned(self._clock())
        self._flush()
        computed = self._compute(plan)
        if self.handoffs:
            self.handoffs.computed(self._clock())
            self.book.flush()
        if computed:
            self._flush()
        load = self._bulletin.news(self._clock(), draining=self.draining)
        if load is not None:
            self._say(None, load)
        return computed or caught_up

    @property
    def _verifies(self) -> bool:
        """How many tokens the pass under way brings is not known, whatever the next is to do."""
        return self._under_way is not None and self._under_way.plan.drafts > 0

    @property
    def _drained(self) -> bool:
        return self._draining_since is not None and not self.book

    def _patience(self) -> float:
        """How long the loop may sleep when nothing can be computed."""
        handing = self.handoffs is not None and self.handoffs.busy
        if self.residency.loading or self._masking.compiling or handing:
            return POLL_S
        if self.book or self._draining_since is not None:
            return 10 * POLL_S  # deadlines and grants run out
        return IDLE_S if self._bulletin.is_told(draining=self.draining) else LOAD_INTERVAL_S

    def _hear(self, heard: list[Heard]) -> None:
        for item in heard:
            connection, message = item.connection, item.message
            match message:
                case Submit():
                    self._reception.submit(connection, message, draining=self.draining)
                case Cancel(name, choices):
                    if request := self.book.find(connection, name):
                        self.book.end(request, Finish.CANCELLED, only=choices)
                case Grant(name, granted):
                    if request := self.book.find(connection, name):
                        request.grant(granted)
                case Forgo(name):
                    if self.handoffs and (request := self.book.find(connection, name)):
                        self.handoffs.forgo(request, self._clock())
                case Prefetch(adapter):
                    self.residency.prefetch(adapter.digest)
                case Retire(digest):
                    self.seating.retire(digest)
                case AskCounts(names):
                    for name in names:
                        self._say(connection, self.book.counts(connection, name))
                case AskRecorded(start, most):
                    self._say(connection, Recorded(self.book.recorded(start, most)))
                case Drain():
                    self.drain()
                case Gone():
                    for request in self.book.of(connection):
                        self.book.end(request, Finish.CANCELLED)
                case news:
                    if self.handoffs:
                        self.handoffs.hear(news, self._clock())

    def _expire(self, now: float) -> None:
        for late in self._reception.deadlines.due(now):
            self.book.end(late, Finish.DEADLINE)
        for request in self.book.metered():
            self._await_grant(request, now)
        since = self._draining_since
        if since is not None and now - since >= self._config.drain_timeout_s:
            for request in self.book:
                self.book.end(request, Finish.ERROR, "the engine is shutting down")

    def _await_grant(self, request: Request, now: float) -> None:
        if not request.dry:
            request.dry_since = None  # it was while drafts were verified
            return
        if request.dry_since is None:
            request.dry_since = now
        if now - request.dry_since >= self._config.grant_timeout_s:
            self.book.end(request, Finish.GRANT)
        elif wants := self._harvest.ask(request):
            self.book.output(request, request.unfinished[0].say([], wants=wants))

    def _fail_loads(self) -> None:
        for digest, error in self.residency.poll().items():
            missing = isinstance(error, AdapterMissing | AdapterUnknown | StoreUnavailable)
            code = RefusalCode.ADAPTER_MISSING if missing else RefusalCode.ADAPTER_INVALID
            log.warning("adapter %s cannot be loaded: %s", digest, error)
            for request in self.book:
                if request.digest == digest:
                    self.book.refuse(request, code, str(error))

    def _refuse_misfits(self, plan: Plan) -> None:
        for request in plan.misfits:
            assert request.digest is not None
            size, pool = self.residency.size(request.digest), self.pool.num_pages
            most = self.scheduler.pages_for(request.positions)
            detail = (
                f"the adapter takes {size} pages and the request {most}; this engine has {pool}"
            )
            self.book.refuse(request, RefusalCode.NEVER_FITS, detail)

    def _compute(self, plan: Plan) -> bool:
        """Launch a pass and take in the one before it, or the same where none runs ahead.

        Returns whether there was any.
        """
        before, self._under_way = self._under_way, None
        begun = self._masking.begin(plan) if before is None else None
        launched = self._launch(plan) if plan.planned else None
        if before is not None:
            self._harvest.take_in(before)
        if isinstance(launched, UnderWay):
            launched = self._draw(launched, begun)
        if isinstance(launched, Exception):
            self._harvest.fail(plan, launched)
        elif launched is not None and self._ahead:
            self._under_way = launched
        elif launched is not None:
            self._harvest.take_in(launched)
        return launched is not None or before is not None

    def _catch_up(self) -> bool:
        """Take in a pass under way, so that all tokens are known. Returns whether there was any."""
        before, self._under_way = self._under_way, None
        if before is not None:
            self._harvest.take_in(before)
        return before is not None

    def _launch(self, plan: Plan) -> UnderWay | Exception:
        now = self._clock()  # before: where nothing runs beside the host, launching computes
        beside = self._ahead and not plan.drafts
        return guarded(
            lambda: UnderWay(plan, self._runner.launch(plan.step), launched=now, beside=beside)
        )

    def _draw(self, launched: UnderWay, begun: Begun) -> UnderWay | Exception:
        drawn = guarded(lambda: self._masking.draw(launched.plan, launched.pending, begun))
        return drawn if isinstance(drawn, Exception) else launched

    def _flush(self) -> None:
        """Say what is to be said, once the gauges show the state it was said in."""
        self._bulletin.show()
        self.book.flush()

    def _say(self, connection: int | None, message: ToGateway) -> None:
        if not self.outbox.put(Said(connection, message), timeout_s=STALL_S):
            raise WireStalled(f"the wire's thread took nothing for {STALL_S} s")


def _speculation(
    config: EngineConfig, built: Built[P], observer: Observer, judge: Judge | None
) -> Speculation | None:
    if built.proposer is None or config.speculation is None:
        return None
    return Speculation(
        built.proposer, most=config.speculation.tokens, rows=config.draft_rows,
        judge=judge or Payoff(ahead=built.ahead), observer=observer,
    )  # fmt: skip
