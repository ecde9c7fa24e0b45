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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from adapters.errors import AdapterMissing, StoreUnavailable
from engine.admission import Limits, Refusal
from engine.book import Book
from engine.built import Built
from engine.collector import Collector
from engine.config import EngineConfig
from engine.counts import CountRecord
from engine.deadlines import Deadlines
from engine.door import Door
from engine.errors import AdapterUnknown, DeviceLost, RunnerFault, WireStalled
from engine.handoff.giving import First
from engine.handoff.handoffs import Handoffs
from engine.handoff.news import News, Wire
from engine.mailbox import Mailbox
from engine.masking import Begun, Masking
from engine.metrics import EngineMetrics
from engine.observer import Observer
from engine.pages import Kind
from engine.protocol import (
    AskCounts,
    AskRecorded,
    Cancel,
    Drain,
    Finish,
    Forgo,
    Goodbye,
    Grant,
    Load,
    Output,
    Prefetch,
    Recorded,
    RefusalCode,
    Refused,
    Retire,
    Role,
    Submit,
    ToGateway,
    TokenLogprobs,
)
from engine.residency import P
from engine.scheduler import Plan, Planned, Scheduler
from engine.seating import Seating
from engine.sequence import Phase, Request, Sequence
from engine.speculation.payoff import Payoff
from engine.speculation.speculation import Judge, Speculation
from engine.standing import name_adapters, standing
from engine.step import NO_ADAPTER, Drawn, Pending, StepResult
from engine.traces import RequestTraces

LOAD_INTERVAL_S = 0.1
STALL_S = 10.0  # how long the wire may leave a full outbox
POLL_S = 0.002  # between looks at loads under way
IDLE_S = 0.25
NO_GATEWAY = -1  # in place of a connection, of what other engines say

log = logging.getLogger(__name__)
T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A launched pass whose result was not taken in yet."""

    plan: Plan
    pending: Pending
    launched: float  # seconds

    def result(self) -> StepResult:
        """Waits for it. Raises whatever the pass did."""
        result = self.pending.wait()
        _verify(self.plan, result)
        return result


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
        self._door = Door(config, self.scheduler, self.book)
        self._config, self._runner, self._eos = config, built.runner, built.eos
        self._ahead = built.ahead
        self._under_way: UnderWay | None = None
        self._taken_in = float("-inf")  # when the last pass was, seconds
        self._metrics, self._record, self._clock = metrics, record, clock
        self._entropy = entropy or random.SystemRandom()
        self._limits = Limits(
            vocab_size=built.base.vocab_size,
            max_model_len=built.max_model_len,
            num_pages=built.num_pages,
            page_tokens=config.page_tokens,
            adapters=self.residency.enabled,
            grammars=self._masking.enabled,
            image_tokens=built.base.image_tokens,
            image_side=built.base.image_side,
            gives=wire is not None and config.role is not Role.DECODE,
            takes=wire is not None and config.takes,
        )
        self.handoffs = self._handoffs(built, wire)
        self._requests = self._sequences = 0  # so far
        self._deadlines = Deadlines(self.book.find)
        self._draining_since: float | None = None
        self._came_round = self._clock()
        self._collector = Collector(clock)
        self._load: Load | None = None
        self._load_pushed = self._stood = float("-inf")
        self._gaps: Counter[float] = Counter()  # seconds between tokens, of one pass

    def _handoffs(self, built: Built[P], wire: Wire | None) -> Handoffs | None:
        if wire is None or built.transfer is None:
            return None
        self._metrics.page_bytes = built.transfer.page_bytes
        return Handoffs(
            wire, built.transfer, self.seating, timeout_s=self._config.handoff_timeout_s,
            observer=self._metrics, deliver=self._deliver, finish=self._end_given,
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
        self._report(self._clock())
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
        return IDLE_S if self._load == self._measure() else LOAD_INTERVAL_S

    def _hear(self, heard: list[Heard]) -> None:
        for item in heard:
            connection, message = item.connection, item.message
            match message:
                case Submit():
                    self._submit(connection, message)
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

    def _submit(self, connection: int, submit: Submit) -> None:
        if self.book.find(connection, submit.request):
            # No answer could say which of the two it is about.
            self._say(connection, Goodbye(f"request {submit.request} is already open"))
            return
        try:
            self._accept(connection, submit)
        except Refusal as refusal:
            self._metrics.refused(refusal.code.value)
            self._say(
                connection,
                Refused(submit.request, refusal.code, refusal.detail, refusal.retry_ms),
            )

    def _accept(self, connection: int, submit: Submit) -> None:
        if self._draining_since is not None:
            raise Refusal(RefusalCode.DRAINING, "this engine is leaving")
        limit = self._limits.admit(submit)
        if self.handoffs:
            self.handoffs.require_new(submit)
        self._door.admit(connection, submit)
        now = self._clock()
        self._requests += 1
        request = Request(
            submit=submit,
            connection=connection,
            serial=self._requests,
            arrived=now,
            limit=limit,
            stops=frozenset(submit.stop_tokens) | (frozenset() if submit.ignore_eos else self._eos),
            deadline=None if submit.deadline_ms is None else now + submit.deadline_ms / 1000,
        )
        self._masking.compile(request)
        request.choices = [self._choice(request, index) for index in range(submit.n)]
        self.book.add(request)
        if self.handoffs:
            self.handoffs.add(request, now)
        for sequence in request.choices:
            self.scheduler.add(sequence)
        self._deadlines.add(request)

    def _choice(self, request: Request, index: int) -> Sequence:
        self._sequences += 1
        given = request.submit.sampling.seed
        seed = self._entropy.getrandbits(63) if given is None else derive_seed(given, index)
        return Sequence(number=self._sequences, request=request, index=index, seed=seed)

    def _expire(self, now: float) -> None:
        for late in self._deadlines.due(now):
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
        elif wants := self._ask(request):
            self.book.output(request, request.unfinished[0].say([], wants=wants))

    def _ask(self, request: Request) -> int | None:
        return request.ask(self._config.grant_ahead, self._config.grant_step)

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
            self._take_in(before)
        if isinstance(launched, UnderWay):
            launched = self._draw(launched, begun)
        if isinstance(launched, Exception):
            self._fail(plan, launched)
        elif launched is not None and self._ahead:
            self._under_way = launched
        elif launched is not None:
            self._take_in(launched)
        return launched is not None or before is not None

    def _catch_up(self) -> bool:
        """Take in a pass under way, so that all tokens are known. Returns whether there was any."""
        before, self._under_way = self._under_way, None
        if before is not None:
            self._take_in(before)
        return before is not None

    def _launch(self, plan: Plan) -> UnderWay | Exception:
        now = self._clock()  # before: where nothing runs beside the host, launching computes
        return _guarded(lambda: UnderWay(plan, self._runner.launch(plan.step), launched=now))

    def _draw(self, launched: UnderWay, begun: Begun) -> UnderWay | Exception:
        drawn = _guarded(lambda: self._masking.draw(launched.plan, launched.pending, begun))
        return drawn if isinstance(drawn, Exception) else launched

    def _take_in(self, under_way: UnderWay) -> None:
        plan, result = under_way.plan, _guarded(under_way.result)
        if isinstance(result, Exception):
            self._fail(plan, result)
            return
        self._count_pass(under_way, kept=sum(len(drawn.further) for drawn in result.drawn))
        prompt = generated = 0
        for item, drawn in zip(plan.planned, result.drawn, strict=True):
            if item.sequence.phase is Phase.FINISHED:  # before this pass was over
                item.sequence.request.spent -= item.draws
                continue
            before = item.sequence.generated
            prompt += self._absorb(item, drawn)
            generated += item.sequence.generated - before
        self._metrics.tokens(prompt=prompt, generated=generated)
        for seconds, times in self._gaps.items():
            self._metrics.vllm.between(seconds, times)
        self._gaps.clear()

    def _fail(self, plan: Plan, error: Exception) -> None:
        log.error("a pass of %d sequences failed", len(plan.planned), exc_info=error)
        self._metrics.failed_step()
        for item in plan.planned:
            item.sequence.request.spent -= item.draws
            if item.sequence.phase is not Phase.FINISHED:
                text = f"the forward pass failed ({type(error).__name__})"
                self.book.finish(item.sequence, Finish.ERROR, text)

    def _absorb(self, item: Planned, drawn: Drawn) -> int:
        """Take in what one chunk brought. Returns how many prompt tokens are newly computed."""
        sequence, request = item.sequence, item.sequence.request
        if drawn.failed:
            self.scheduler.distrust(sequence)
            self.book.finish(sequence, Finish.ERROR, drawn.failed)
            return 0
        fresh = sequence.advance(item.stop, item.life, drawn)
        self.scheduler.settle(item)
        if fresh and sequence.prompt_computed == len(request.submit.tokens):
            self.book.note(request)
        if item.chunk.draw is not None and drawn.token is not None:
            self._emit(item, (drawn, *drawn.further))
        return fresh

    def _emit(self, item: Planned, rows: tuple[Drawn, ...]) -> None:
        """Take the tokens of one pass, up to one that ends the sequence."""
        sequence = item.sequence
        request, count, error = sequence.request, 0, ""
        tokens, logprobs, finish = list[int](), list[TokenLogprobs](), None
        for row in rows:
            if row.failed or row.token is None:
                self.scheduler.distrust(sequence)
                finish, error = Finish.ERROR, row.failed
                break
            count += 1
            finish = sequence.accept(row.token)
            if sequence.stop_token is None:
                tokens.append(row.token)
                logprobs += [row.logprobs] if row.logprobs else []
            if finish:
                error = f"grammar: {sequence.fault}" if finish is Finish.ERROR else ""
                break
        self.scheduler.took_tokens(item, count)
        self._clock_token(sequence, self._taken_in)
        output = self._said(sequence, tokens, logprobs, finish=finish, error=error)
        first = rows[0]
        if (
            self.handoffs
            and request.gives
            and first.token is not None
            and finish in (Finish.LENGTH, Finish.STOP)
        ):
            drawn = First(first.token, first.logprobs, output)
            self.handoffs.drew(request, drawn, self._taken_in)
        else:
            self._tell(sequence, output)

    def _deliver(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """The first token of a prompt that another engine computed."""
        request = sequence.request
        request.spent += 1
        self.book.note(request)
        finish = sequence.accept(token)
        self._clock_token(sequence, self._clock())
        kept = sequence.stop_token is None
        output = self._said(
            sequence,
            [token] if kept else [],
            [logprobs] if logprobs and kept else [],
            finish=finish,
            error=f"grammar: {sequence.fault}" if finish is Finish.ERROR else "",
        )
        self._tell(sequence, output)

    def _end_given(self, sequence: Sequence, terminal: Output | None, error: str) -> None:
        """The pages of a prompt computed for another engine have left, or will not."""
        finish = terminal.finish if terminal and terminal.finish else Finish.ERROR
        self.book.finish(sequence, finish, error, terminal)

    def _said(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[TokenLogprobs],
        *,
        finish: Finish | None,
        error: str,
    ) -> Output:
        return sequence.say(
            tokens,
            logprobs or None,
            finish=finish,
            error=error,
            wants=None if finish else self._ask(sequence.request),
        )

    def _tell(self, sequence: Sequence, output: Output) -> None:
        if output.finish:
            self.book.finish(sequence, output.finish, output=output)
        else:
            self.book.output(sequence.request, output)

    def _clock_token(self, sequence: Sequence, now: float) -> None:
        gap = sequence.course.drew(now)
        if gap is not None:
            self._gaps[gap] += 1
        else:
            self._metrics.vllm.prefilled(
                len(sequence.request.submit.tokens), now - sequence.course.arrived
            )

    def _count_pass(self, under_way: UnderWay, *, kept: int) -> None:
        plan, started = under_way.plan, under_way.launched
        rows = {item.chunk.adapter for item in plan.planned}
        base = NO_ADAPTER in rows
        now = self._clock()
        seconds = now - max(started, self._taken_in)  # it began when the one before it ended
        self._taken_in = now
        alone = self._ahead and not plan.drafts  # the host's work is beside it
        self.scheduler.took(plan, seconds, kept=kept, whole=seconds if alone else now - plan.began)
        self._metrics.step(seconds, len(rows) - base, base, len(plan.planned))
        for item in plan.planned:
            request, course = item.sequence.request, item.sequence.course
            if course.started is None:
                course.started = started
            if request.first_pass is None:
                request.first_pass = started
                self._metrics.queued(started - request.arrived)

    def _flush(self) -> None:
        """Say what is to be said, once the gauges show the state it was said in."""
        self._metrics.state(
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            free_pages=self.pool.free_pages,
            resting_pages=self.pool.resting_pages,
            kv_pages=self.pool.holdings(Kind.KV),
            adapter_pages=self.pool.holdings(Kind.ADAPTER),
            adapters=self.residency.count,
            usable_pages=self.seating.eviction.pages,
        )
        self.book.flush()

    def _report(self, now: float) -> None:
        """Push the load to the gateways when it changed, and tell the metrics who has what."""
        if now - self._stood >= LOAD_INTERVAL_S:
            self._stood = now
            self._stand()
        if now - self._load_pushed < LOAD_INTERVAL_S:
            return
        load = self._measure()
        if load != self._load:
            self._load, self._load_pushed = load, now
            self._say(None, load)

    def _stand(self) -> None:
        shares = self._metrics.shares
        shares.stand(standing(self.scheduler, self.seating, shares.adapters))
        name_adapters(self.scheduler, self._metrics.vllm.adapters)

    def _measure(self) -> Load:
        return Load(
            self.scheduler.running,
            self.scheduler.waiting,
            self.seating.eviction.pages,
            self.pool.num_pages,
            self.residency.resident,
            self.draining,
        )

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


def _guarded(work: Callable[[], T]) -> T | Exception:
    """The loop's guard: what a pass raises ends the requests in it, and nothing else."""
    try:
        return work()
    except DeviceLost:
        raise
    except Exception as error:
        return error


def derive_seed(seed: int, index: int) -> int:
    """A choice's own seed in 0 .. 2**64-1; the first choice keeps the request's, modulo 2**64."""
    return (seed + index * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)


def _verify(plan: Plan, result: StepResult) -> None:
    if len(result.drawn) != len(plan.planned):
        raise RunnerFault(f"{len(plan.planned)} chunks brought {len(result.drawn)} results")
    for item, drawn in zip(plan.planned, result.drawn, strict=True):
        if item.chunk.draw and drawn.token is None and not drawn.failed:
            raise RunnerFault(f"sequence {item.sequence.number} was to draw and did not")
