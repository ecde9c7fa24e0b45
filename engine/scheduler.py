"""Which tokens of which sequences the next forward pass computes.

Sequences join and leave at every pass. Running ones decode first, then prompts go on in
chunks, then waiting sequences are admitted, all within these budgets: tokens per pass, sequences
per pass, pages, and where a target is set the time a pass with decodes may take. A sequence is
admitted with pages for all it knows, so a prompt never stops half-way for want of memory; a decode
that needs one more page first evicts what rests, then makes the newest sequence of the least
deserving tenant yield. Who waits for an adapter is passed over; who waits for pages is not, so
nothing large starves. Belongs to the engine loop's thread.
"""

import time
from bisect import insort
from collections.abc import Callable, Mapping
from collections.abc import Sequence as View
from operator import attrgetter
from typing import Generic

from engine.claims import Claims
from engine.config import EngineConfig
from engine.fairness import INPUT_COST, LOAD_COST, OUTPUT_COST, Fairness
from engine.observer import Cause, Observer
from engine.pace import Pace
from engine.planned import Plan, Planned, chunk_of
from engine.portions import Claim, Portions
from engine.protocol import Submit
from engine.request import Awaits
from engine.residency import P
from engine.seating import Seat, Seating
from engine.sequence import Phase, Sequence
from engine.speculation.speculation import Speculation
from engine.tempo import Tempo
from engine.waiting import WaitingQueue
from engine.waits import Waits

SCANNED = 256  # waiting sequences looked at per pass
COMPARED = 32  # of them, those among whom the cheapest to serve goes first

_order = attrgetter("order")


class Scheduler(Generic[P]):
    def __init__(
        self,
        config: EngineConfig,
        seating: Seating[P],
        *,
        max_step_s: float | None = None,
        pass_sizes: View[int] = (),
        speculation: Speculation | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer or Observer()
        self._waits, self._pace, self._clock = Waits(self._observer, clock), Pace(), clock
        self._speculation = speculation
        self._config, self._seating, self._residency = config, seating, seating.residency
        self.fairness = Fairness(config.fairness_quantum)
        self._waiting = WaitingQueue(self.fairness)
        self._running: list[Sequence] = []  # in order
        self._owed: list[Sequence] = []  # waiting ones that have a claim to a place in this pass
        self._tempo = Tempo(config.max_step_s or max_step_s, pass_sizes)
        self._portions = Portions(
            self.fairness, seating, self._tempo, most=config.max_num_batched_tokens, clock=clock
        )
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def runs(self) -> list[Sequence]:
        """Those that run, in order."""
        return list(self._running)

    @property
    def waits(self) -> list[Sequence]:
        """Those that wait, in turn."""
        return list(self._waiting)

    def lines(self) -> dict[str, list[Sequence]]:
        """Who waits, by tenant."""
        return self._waiting.lines()

    def expected_wait(self, submit: Submit) -> float | None:
        """Seconds until all of a new request would run; None: nobody knows yet."""
        if not self._pace.lacking:
            return 0.0
        rate = self._pace.rate
        return None if rate is None else (self._waiting.ahead(submit) + submit.n) / rate

    def pages_for(self, tokens: int) -> int:
        return self._seating.pages_for(tokens)

    def add(self, sequence: Sequence) -> None:
        submit = sequence.request.submit
        self.fairness.enter(submit.tenant, submit.weight)
        self._waiting.add(sequence)
        self._waits.begin(sequence)
        if digest := sequence.request.digest:
            self._residency.join(digest)
            self._residency.seek(digest)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over: whatever it holds is free before the next pass is planned."""
        if sequence.phase is Phase.RUNNING:
            self._running.remove(sequence)
            self._seating.release(sequence)
        else:
            self._waiting.remove(sequence)
            self._waits.end(sequence)
            self._seating.swap.drop(sequence)
        sequence.move(Phase.FINISHED)
        self._seating.prefix.forget(sequence)
        if self._speculation is not None:
            self._speculation.forget(sequence.number)
        self.fairness.leave(sequence.request.submit.tenant)
        if digest := sequence.request.digest:
            self._residency.leave(digest)

    def settle(self, item: Planned) -> None:
        """A planned chunk was computed well."""
        if item.placing == item.sequence.placing and item.sequence.phase is Phase.RUNNING:
            self._seating.settle(item.sequence, item.stop)

    @property
    def speculates(self) -> bool:
        """The next pass may verify drafts: every token drawn has to be known before it is
        planned."""
        return self._speculation is not None and self._speculation.active

    def took_tokens(self, item: Planned, count: int) -> int:
        """Of a planned chunk that drew, so many tokens count. Returns how many drafts were kept.

        Once for each, before its sequence may end."""
        sequence = item.sequence
        sequence.request.spent -= item.draws - count
        if not item.drafts or self._speculation is None:
            return 0
        kept, tenant = max(count - 1, 0), sequence.request.submit.tenant
        self._speculation.kept(tenant, drafts=len(item.drafts), kept=kept)
        if sequence.phase is Phase.RUNNING and item.placing == sequence.placing:
            self.fairness.charge(tenant, OUTPUT_COST * kept)
            sequence.keep(item.stop + kept)
            self._seating.settle(sequence, item.stop + kept)
            self._seating.trim(sequence)
        return kept

    def distrust(self, sequence: Sequence) -> None:
        """A chunk came out wrong: nobody else shall use what it was computed from."""
        self._seating.prefix.distrust(sequence)

    def took(self, plan: Plan, seconds: float, *, kept: int = 0, whole: float = 0.0) -> None:
        """A pass took so long, ``whole`` with the host's work that nothing hid, and so many of
        its drafts were kept."""
        if self._speculation is not None and not plan.prompt_tokens:
            self._speculation.took(whole, sequences=plan.decodes, verified=plan.drafts, kept=kept)
        self._tempo.took(seconds, decodes=plan.decodes, prompt_tokens=plan.prompt_tokens)

    def plan(self) -> Plan:
        plan = Plan(began=self._clock())
        self._waits.look()
        self._owed = self._make_way()
        before = self.preemptions
        plan.decodes = self._plan_decodes(plan)
        self._portions.limit(plan)
        lack, running = None, len(self._running)
        admits = self.preemptions == before
        self._plan_prompts(plan, admits=admits)
        if admits:
            lack = self._admit(plan)
            self._waits.room_lacks(lack or Cause.CAPACITY)
        self._pace.passed(
            self._clock(),
            started=len(self._running) - running,
            lacking=bool(self._waiting) and (lack is not None or self.preemptions > before),
        )
        self._look_ahead()
        plan.copies = self._seating.take_copies()
        plan.planned.sort(key=lambda item: item.chunk.adapter)  # stable: one adapter's adjacent
        return plan

    def _plan_decodes(self, plan: Plan) -> int:
        decoding = [sequence for sequence in self._running if self._decodes(sequence)]
        for sequence in decoding:  # pages first: who yields must not be planned
            if sequence.phase is Phase.RUNNING:
                self._grow(sequence)
        decoding = [sequence for sequence in decoding if sequence.phase is Phase.RUNNING]
        drafts = self._drafts(decoding)
        for sequence in decoding:
            self._include(plan, sequence, 1, drafts.get(sequence.number, ()))
            if self._speculation is not None and not plan.planned[-1].drafts:
                self._seating.trim(sequence)  # of what was for drafts that nobody made
        return len(plan.planned)

    def _drafts(self, decoding: list[Sequence]) -> Mapping[int, View[int]]:
        """Prompts keep half of a pass."""
        if self._speculation is None:
            return {}
        room = self._config.max_num_batched_tokens // 2 - len(decoding)
        return self._speculation.drafts(decoding, room, self._seating.reach)

    def _decodes(self, sequence: Sequence) -> bool:
        """It draws its next token; else it is in its prompt, done, or waits for a Grant."""
        request = sequence.request
        over = sequence.exhausted or request.leaving
        return not (sequence.in_prompt or over or request.dry or sequence.filling)

    def _plan_prompts(self, plan: Plan, *, admits: bool) -> None:
        """The least served tenant's first, so that a flood's prompts delay its own only; whoever
        waits and deserves more is admitted before."""
        prompts = [s for s in self._running if s.in_prompt and not s.filling]
        self._portions.weigh(prompts)
        prompts.sort(key=self._portions.deserving)
        for sequence in prompts:
            if plan.budget > 0 and admits and self._places and self._waiting:
                self._admit(plan, before=self._portions.deserving(sequence))
            if (room := self._portions.room(plan, sequence)) > 0:
                self._compute(plan, sequence, room)

    def _compute(self, plan: Plan, sequence: Sequence, room: int) -> None:
        """Some of its prompt, in this pass. One of a modest tenant keeps it short: it, and whoever
        comes meanwhile, waits for the end of it."""
        if sequence.filling:
            return
        if self._portions.modest(sequence):
            plan.withheld = max(plan.withheld, plan.reserved)
        plan.budget -= self._include(plan, sequence, room)

    def _make_way(self) -> list[Sequence]:
        """Whoever has a claim to a place gets one: a free one, or that of a sequence that yields.
        What that one computed rests, so little of it is computed again."""
        owed = list[Sequence]()
        if not self._waiting or self.fairness.tenants < 2:
            return owed
        claims = Claims(self.fairness, self._running, loss=self._seating.loss)
        for sequence in self._waiting.candidates(COMPARED):
            if not claims.has(sequence) or not self._may_run(sequence):
                continue
            if self._places <= len(owed):
                yields = claims.take(sequence)
                if yields is None:
                    continue
                self._preempt(yields, squeezed=False)
            claims.give(sequence)
            owed.append(sequence)
        return owed

    def _may_run(self, sequence: Sequence) -> bool:
        """Nothing but room keeps it."""
        request = sequence.request
        if request.dry or request.held or sequence.drawing:
            return False
        return request.digest is None or self._residency.seek(request.digest)

    def _admit(self, plan: Plan, before: Claim | None = None) -> Cause | None:
        """Returns what those who stay behind wait for; None when there was room for all.

        ``before``: only who deserves more.
        """
        over = set[str]()  # tenants whose share is used up
        for sequence in self._candidates() if self._places else ():
            if plan.budget <= 0 or not self._places:
                break
            if before is not None and self._portions.deserving(sequence) >= before:
                continue
            if (tenant := sequence.request.submit.tenant) in over:
                self._waits.hold(sequence, Cause.FAIRNESS)
                continue
            if (room := self._portions.room(plan, sequence)) <= 0:
                continue
            seat = self._try(plan, sequence)
            if seat is Seat.FULL:
                self._waits.hold(sequence, None)
                return Cause.PAGES
            if seat is Seat.OVER:
                self._waits.hold(sequence, Cause.FAIRNESS)
                over.add(tenant)
            elif seat is Seat.TAKEN:
                self._compute(plan, sequence, room)
        return None if self._places and plan.budget > plan.withheld else Cause.CAPACITY

    @property
    def _places(self) -> int:
        """Sequences that may still be admitted."""
        return self._config.max_num_seqs - len(self._running)

    def _candidates(self) -> list[Sequence]:
        """Those for whom way was made, then the others in turn; of those whose turns count as
        equal, the cheapest to serve first."""
        equals = self._waiting.equals(COMPARED)
        if len(equals) > 1:
            equals.sort(key=self._expense)
        owed = [sequence for sequence in self._owed if sequence.phase is not Phase.RUNNING]
        candidates = [*owed, *equals, *self._waiting.candidates(SCANNED)]
        return list({sequence.number: sequence for sequence in candidates}.values())

    def _expense(self, sequence: Sequence) -> tuple[bool, int]:
        digest = sequence.request.digest
        cold = digest is not None and not self._residency.placed(digest)
        return cold, -self._seating.found(sequence)

    def _look_ahead(self) -> None:
        """Have the adapters of those who are next brought to the host meanwhile."""
        if self._waiting and self._residency.can_load:
            for sequence in self._waiting.candidates(COMPARED):
                if (digest := sequence.request.digest) and self._residency.seek(digest):
                    self._waits.loaded(sequence)

    def _try(self, plan: Plan, sequence: Sequence) -> Seat:
        request = sequence.request
        if request.unready:
            self._waits.hold(sequence, Cause.GRAMMAR)
            return Seat.LATER
        if request.dry or sequence.drawing:
            self._waits.hold(sequence, Cause.GRANT if request.dry else None)
            return Seat.LATER
        if request.held:
            self._waits.hold(sequence, Cause.HANDOFF)
            return Seat.LATER
        if request.digest and not self._residency.seek(request.digest):
            self._waits.hold(sequence, Cause.ADAPTER)
            if sequence.phase is Phase.WAITING:
                sequence.move(Phase.WAITING_ADAPTER)
            return Seat.LATER
        if request.digest and self._seating.never_fits(request):
            if request not in plan.misfits:
                plan.misfits.append(request)
            return Seat.LATER
        placed = request.digest is None or self._residency.placed(request.digest)
        seat = self._seating.seat(sequence, len(self._running))
        if seat is Seat.TAKEN:
            self._start(sequence, loaded=not placed)
        elif seat is Seat.LATER:
            self._waits.hold(sequence, Cause.PREFIX)
        return seat

    def _start(self, sequence: Sequence, *, loaded: bool) -> None:
        request, tenant = sequence.request, sequence.request.submit.tenant
        prompt = len(request.submit.tokens)
        if request.cached is None:
            request.cached = sequence.prompt_computed
        if sequence.placing == 1:
            self._observer.found(tenant, prompt=prompt, cached=sequence.prompt_computed)
        fresh = prompt - sequence.prompt_computed
        self.fairness.charge(tenant, INPUT_COST * fresh)
        if loaded and request.digest:
            self.fairness.charge(tenant, LOAD_COST * self._residency.size(request.digest))
        self._waiting.remove(sequence)
        self._waits.end(sequence)
        sequence.move(Phase.RUNNING)
        if request.awaits is Awaits.OFFERED:
            request.awaits = Awaits.NOTHING if sequence.index else Awaits.PAGES
        sequence.start()
        insort(self._running, sequence, key=_order)

    def _grow(self, sequence: Sequence) -> None:
        """Pages for all a running sequence knows, unless it has to yield its own."""
        while sequence.phase is Phase.RUNNING and not self._seating.grow(sequence):
            self._preempt(self._victim())

    def _victim(self) -> Sequence:
        """The newest sequence of the least deserving tenant, among the lowest priority."""
        lowest = min(sequence.request.submit.priority for sequence in self._running)
        low = [s for s in self._running if s.request.submit.priority == lowest]
        tenants = self.fairness.least_deserving({s.request.submit.tenant for s in low})
        return max((s for s in low if s.request.submit.tenant in tenants), key=attrgetter("age"))

    def _preempt(self, sequence: Sequence, *, squeezed: bool = True) -> None:
        """``squeezed``: for want of pages, not of places."""
        self._running.remove(sequence)
        self._seating.keep(sequence, squeezed=squeezed, token_s=self._tempo.token_s)
        self._seating.release(sequence)
        sequence.forget()
        sequence.move(Phase.WAITING)
        self._waiting.add(sequence)
        self._waits.begin(sequence)
        self._waits.room_lacks(Cause.PAGES)
        self._observer.preempted(sequence.request.submit.tenant)
        self.preemptions += 1

    def _include(self, plan: Plan, sequence: Sequence, most: int, drafts: View[int] = ()) -> int:
        """Plan the sequence's next chunk, of at most so many tokens and drafts behind the last it
        knows. Returns its length without these."""
        start, request = sequence.computed, sequence.request
        if sequence.wants_prompt_logprobs and start:
            start -= 1  # the row that predicts the chunk's first token belongs to the one before
        known = sequence.known
        stop = min(known, start + most)
        draws = stop == known
        if stop == sequence.computed or (draws and request.dry):
            return 0
        if request.metered:  # choices share it
            drafts = drafts[: max(0, request.granted - request.spent - 1)]
        request.spent += draws + len(drafts)
        request.started = True
        self.fairness.charge(request.submit.tenant, OUTPUT_COST * draws)
        pages = self.pages_for(stop + len(drafts))
        chunk = chunk_of(sequence, start, stop, drafts=drafts, pages=pages, draws=draws)
        plan.planned.append(Planned(sequence, stop, sequence.life, sequence.placing, chunk))
        plan.drafts += len(drafts)
        sequence.plan(stop, draws=draws)
        return stop - start
