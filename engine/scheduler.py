"""Which tokens of which sequences the next forward pass computes.

Sequences join and leave at every pass. Running ones decode first, then prompts go on in
chunks, then waiting sequences are admitted, all within three budgets: tokens per pass,
sequences per pass, pages. A sequence is admitted with pages for all it knows, so a prompt never
stops half-way for want of memory; a decode that needs one more page first evicts idle adapters,
then makes the newest sequence of the lowest priority yield. Who waits for an adapter is passed
over; who waits for pages is not, so nothing large starves. Belongs to the engine loop's thread.
"""

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import Generic

from engine.config import EngineConfig
from engine.pages import PagePool
from engine.residency import P, Residency
from engine.sequence import Phase, Request, Sequence
from engine.step import Chunk, StepPlan
from engine.waiting import WaitingQueue

SCANNED = 256  # waiting sequences looked at per pass
HEADROOM = 50  # one page in so many stays free when a sequence is admitted

_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Planned:
    sequence: Sequence
    stop: int  # the position the chunk ends before
    life: int  # of the sequence when this was planned
    chunk: Chunk


@dataclass(slots=True)
class Plan:
    """One pass, and what was found out while planning it."""

    planned: list[Planned] = field(default_factory=list)
    misfits: list[Request] = field(default_factory=list)  # with their adapter, larger than the pool

    @property
    def step(self) -> StepPlan:
        return StepPlan([item.chunk for item in self.planned])


class _Admission(Enum):
    ADMITTED = auto()
    SKIPPED = auto()  # cannot go yet; whoever is behind may
    BLOCKED = auto()  # waits for pages; nobody may take them first


class Scheduler(Generic[P]):
    def __init__(self, config: EngineConfig, pool: PagePool, residency: Residency[P]) -> None:
        self._config, self._pool, self._residency = config, pool, residency
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in order
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self._config.page_tokens)

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence)
        if digest := sequence.request.digest:
            self._residency.join(digest)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over: whatever it holds is free before the next pass is planned."""
        if sequence.phase is Phase.RUNNING:
            self._yield_pages(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.move(Phase.FINISHED)
        if digest := sequence.request.digest:
            self._residency.leave(digest)

    def plan(self) -> Plan:
        plan = Plan()
        budget = self._config.max_num_batched_tokens
        before = self.preemptions
        budget -= self._plan_decodes(plan)
        budget -= self._plan_prompts(plan, budget)
        if self.preemptions == before:
            self._admit(plan, budget)
        plan.planned.sort(key=lambda item: item.chunk.adapter)  # stable: one adapter's adjacent
        return plan

    def _plan_decodes(self, plan: Plan) -> int:
        for sequence in list(self._running):
            if sequence.phase is not Phase.RUNNING or sequence.in_prompt:
                continue  # it has yielded a moment ago, or goes on in a chunk
            if sequence.exhausted or sequence.request.dry:
                continue
            if self._grow(sequence):
                self._include(plan, sequence, 1)
        return len(plan.planned)

    def _plan_prompts(self, plan: Plan, budget: int) -> int:
        spent = 0
        for sequence in self._running:
            if spent < budget and sequence.in_prompt:
                spent += self._include(plan, sequence, budget - spent)
        return spent

    def _admit(self, plan: Plan, budget: int) -> None:
        for sequence in self._waiting.candidates(SCANNED):
            if budget <= 0 or len(self._running) >= self._config.max_num_seqs:
                return
            match self._try(plan, sequence):
                case _Admission.ADMITTED:
                    budget -= self._include(plan, sequence, budget)
                case _Admission.BLOCKED:
                    return
                case _Admission.SKIPPED:
                    pass

    def _try(self, plan: Plan, sequence: Sequence) -> _Admission:
        digest = sequence.request.digest
        if sequence.request.dry or sequence.drawing:
            return _Admission.SKIPPED
        if digest and not self._residency.seek(digest):
            if sequence.phase is Phase.WAITING:
                sequence.move(Phase.WAITING_ADAPTER)
            return _Admission.SKIPPED
        if digest and self._misfit(sequence.request):
            if sequence.request not in plan.misfits:
                plan.misfits.append(sequence.request)
            return _Admission.SKIPPED
        pages = self.pages_for(sequence.known)
        if not self._room(pages, digest):
            return _Admission.BLOCKED
        if digest and (row := self._residency.pin(digest)) is not None:
            sequence.row = row
        elif digest:
            return _Admission.SKIPPED  # it cannot be laid out; its requests hear of it next
        self._start(sequence, pages)
        return _Admission.ADMITTED

    def _misfit(self, request: Request) -> bool:
        """With its adapter, the request could not even run alone."""
        assert request.digest is not None
        most = self.pages_for(request.positions) + self._residency.size(request.digest)
        return most > self._pool.num_pages

    def _room(self, pages: int, digest: str | None) -> bool:
        """Whether pages can be had without taking any from a running sequence."""
        if digest and not self._residency.placed(digest):
            pages += self._residency.size(digest)
        pages += min(len(self._running), self._pool.num_pages // HEADROOM)
        return pages <= self._pool.free_pages + self._residency.evictable(besides=digest)

    def _start(self, sequence: Sequence, pages: int) -> None:
        self._residency.make_room(pages)
        taken = self._pool.allocate(pages, sequence.owner)
        assert taken is not None, "room was counted before"
        sequence.pages = taken
        self._waiting.serve(sequence)
        sequence.move(Phase.RUNNING)
        insort(self._running, sequence, key=_order)

    def _grow(self, sequence: Sequence) -> bool:
        """Pages for all a running sequence knows; False if it had to yield its own."""
        while self.pages_for(sequence.known) > len(sequence.pages):
            if self._residency.make_room(1) and (page := self._pool.allocate(1, sequence.owner)):
                sequence.pages += page
                continue
            newest = self._running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._yield_pages(sequence)
        sequence.forget()
        sequence.move(Phase.WAITING)
        self._waiting.add(sequence)
        self.preemptions += 1

    def _yield_pages(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pool.free(sequence.owner)
        if sequence.request.digest:
            self._residency.unpin(sequence.request.digest)

    def _include(self, plan: Plan, sequence: Sequence, most: int) -> int:
        """Plan the sequence's next chunk, of at most so many tokens. Returns its length."""
        start, request = sequence.computed, sequence.request
        gathers = sequence.wants_prompt_logprobs
        if gathers and start:
            start -= 1  # the row that predicts the chunk's first token belongs to the one before
        stop = min(sequence.known, start + most)
        draws = stop == sequence.known
        if stop == sequence.computed or (draws and request.dry):
            return 0
        request.spent += draws
        request.started = True
        chunk = Chunk(
            sequence=sequence.number,
            tokens=sequence.tokens(start, stop),
            start=start,
            pages=sequence.pages[: self.pages_for(stop)],
            adapter=sequence.row,
            draw=sequence.draw() if draws else None,
            prompt_logprobs=request.submit.prompt_logprobs if gathers else None,
        )
        plan.planned.append(Planned(sequence, stop, sequence.life, chunk))
        sequence.plan(stop, draws=draws)
        return stop - start
