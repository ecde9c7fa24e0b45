"""One choice of one request inside the engine.

A sequence *knows* its prompt and the tokens drawn so far, the one being drawn by a pass under way
included, and has *computed* KV for the first of them, or has it computed by that pass. Preemption
forgets what is computed, never what is known, so tokens do not change.
Belongs to the engine loop's thread.
"""

from collections.abc import Sequence as View
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from engine.course import Course
from engine.matcher import Matcher
from engine.pages import Kind, Owner
from engine.protocol import Finish, Output, Pooling, TokenLogprobs, Usage
from engine.request import Awaits, Request
from engine.step import DRAWN, NO_ADAPTER, Draw, Drawn, Seen


class Phase(StrEnum):
    WAITING = "waiting"
    WAITING_ADAPTER = "waiting_adapter"  # the adapter is on its way; no page is held
    RUNNING = "running"
    FINISHED = "finished"


_LEGAL = {
    Phase.WAITING: {Phase.WAITING_ADAPTER, Phase.RUNNING, Phase.FINISHED},
    Phase.WAITING_ADAPTER: {Phase.WAITING, Phase.RUNNING, Phase.FINISHED},
    Phase.RUNNING: {Phase.WAITING, Phase.FINISHED},
    Phase.FINISHED: set[Phase](),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    number: int  # unique within a boot
    request: Request
    index: int
    seed: int
    phase: Phase = Phase.WAITING
    output: list[int] = field(default_factory=list)
    drawing: int = 0  # tokens being drawn by passes launched and not taken in
    computed: int = 0  # known tokens whose KV is in pages once the pass under way ends
    settled: int = 0  # of them, those whose passes were taken in
    placing: int = 0  # how often it was given pages: what an earlier placing computed is gone
    stamp: float | None = None  # cost its tenant had queued before it
    life: int = 0  # how often it was preempted: what a pass of an earlier life gathered is void
    pages: list[int] = field(default_factory=list)
    row: int = NO_ADAPTER  # of the adapter table, while running
    prompt_computed: int = 0  # the most prompt tokens ever computed
    stop_token: int | None = None
    course: Course = field(init=False)
    matcher: Matcher | None = None  # from its first pass on, where its request has a grammar
    prompt_logprobs: list[TokenLogprobs] | None = None  # gathered and not yet reported
    pooled: npt.NDArray[np.float64] | None = None  # sum over the tokens computed so far

    def __post_init__(self) -> None:
        self.course = Course(self.request.arrived)
        if self.request.submit.prompt_logprobs is not None and self.index == 0:
            self.prompt_logprobs = []

    @property
    def finished(self) -> bool:
        return self.phase is Phase.FINISHED

    @property
    def owner(self) -> Owner:
        return Owner(Kind.KV, self.number, self.request.submit.tenant)

    @property
    def order(self) -> tuple[int, float, int, int]:
        """Smaller goes first within its tenant."""
        request = self.request
        return (-request.submit.priority, request.due, request.serial, self.index)

    @property
    def age(self) -> tuple[int, int]:
        """Larger is newer."""
        return (self.request.serial, self.index)

    @property
    def known(self) -> int:
        return len(self.request.submit.tokens) + len(self.output) + self.drawing

    @property
    def exhausted(self) -> bool:
        """Its last token is drawn, or being drawn."""
        return len(self.output) + self.drawing >= self.request.limit

    @property
    def in_prompt(self) -> bool:
        """More than one token is yet to be computed, or all of a chunk's tokens are reported."""
        return self.known - self.computed > 1 or self.sees_all

    @property
    def generated(self) -> int:
        return len(self.output) + (self.stop_token is not None)

    @property
    def fault(self) -> str:
        """Why its grammar can be followed no further."""
        return self.matcher.fault if self.matcher else ""

    def move(self, phase: Phase) -> None:
        assert phase in _LEGAL[self.phase], f"a {self.phase} sequence cannot become {phase}"
        self.phase = phase

    def tokens(self, start: int, stop: int) -> View[int]:
        """Known tokens at positions start .. stop - 1."""
        prompt, split = self.request.submit.tokens, len(self.request.submit.tokens)
        if stop <= split:
            return prompt[start:stop]
        drawn = self.output[max(0, start - split) : stop - split]
        if stop - split > len(self.output):
            drawn.append(DRAWN)
        return prompt[start:split] + drawn if start < split else drawn

    def seen(self, start: int, stop: int) -> tuple[Seen, ...]:
        """What of its images lies at positions start .. stop - 1."""
        if not self.request.submit.images:
            return ()
        return tuple(
            Seen(image, first - start, first - image.start, last - first)
            for image in self.request.submit.images
            if (first := max(start, image.start)) < (last := min(stop, image.start + image.tokens))
        )

    def draw(self, drafts: View[int] = ()) -> Draw:
        """What to sample once every known token is computed, and these drafts behind them."""
        submit = self.request.submit
        position = len(self.output) + self.drawing + len(drafts)
        early = position < submit.sampling.min_tokens
        return Draw(
            sampling=submit.sampling,
            seed=self.seed,
            position=position,
            prompt=submit.tokens,
            output=[*self.output, *drafts]
            if drafts and submit.sampling.looks_back
            else self.output,
            barred=tuple(sorted(self.request.stops)) if early else (),
            logprobs=submit.logprobs,
            masked=self.matcher is not None,
        )

    def start(self) -> None:
        """It runs, perhaps not for the first time."""
        if self.matcher is None and self.request.grammar is not None:
            self.matcher = self.request.grammar.result().fork()

    def place(self, pages: list[int], computed: int) -> None:
        """It runs in these pages, which hold KV of its first ``computed`` tokens."""
        self.pages, self.computed, self.settled = pages, computed, computed
        self.placing += 1
        prompt = len(self.request.submit.tokens)
        self.prompt_computed = max(self.prompt_computed, min(computed, prompt))

    @property
    def filling(self) -> bool:
        """Its pages come from another engine."""
        return self.request.awaits is Awaits.PAGES and self.index == 0

    def fill(self, computed: int) -> None:
        """KV of its first ``computed`` tokens came from another engine."""
        assert computed >= self.computed, "what is computed stays so"
        self.computed = computed
        self.prompt_computed = max(self.prompt_computed, computed)

    def plan(self, stop: int, *, draws: bool) -> None:
        """The pass to be launched computes positions before ``stop``."""
        self.computed = stop
        self.drawing += draws

    def advance(self, stop: int, life: int, drawn: Drawn) -> int:
        """Positions before ``stop`` are computed. Returns how many prompt tokens are newly so."""
        self.drawing -= drawn.token is not None
        if self.prompt_logprobs is not None and life == self.life:
            self.prompt_logprobs += drawn.prompt_logprobs
        if drawn.pooled is not None and life == self.life:
            self.pooled = drawn.pooled if self.pooled is None else self.pooled + drawn.pooled
        reached = min(stop, len(self.request.submit.tokens))
        fresh = max(0, reached - self.prompt_computed)
        self.prompt_computed += fresh
        return fresh

    def accept(self, token: int) -> Finish | None:
        """Take a drawn token; says whether it ended the sequence."""
        if token in self.request.stops:
            self.stop_token = token
            return Finish.STOP
        self.output.append(token)
        if self.matcher is not None:
            self.matcher.take(token)
            if self.fault:
                return Finish.ERROR
            if self.matcher.complete:
                return Finish.STOP
        return Finish.LENGTH if len(self.output) >= self.request.limit else None

    def keep(self, stop: int) -> None:
        """Drafts were kept, so that all positions before ``stop`` are computed."""
        self.computed = stop

    def forget(self) -> None:
        """Give up what is computed: its pages are gone."""
        self.computed = self.settled = 0
        if self.filling:
            self.request.awaits = Awaits.NOTHING  # what comes has no place any more
        if not self.drawing:
            self.life += 1
        self.pages = []
        self.row = NO_ADAPTER
        if self.prompt_logprobs and self.wants_prompt_logprobs:
            self.prompt_logprobs = []  # gathered again from the start
        if self.undrawn:
            self.pooled = None  # likewise

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some of the prompt's log-probabilities are yet to be gathered."""
        return self.prompt_logprobs is not None and self.undrawn

    @property
    def undrawn(self) -> bool:
        """No token was drawn, or is being drawn."""
        return not self.output and not self.drawing

    @property
    def sees_all(self) -> bool:
        """Every token of its prompt has to be computed by itself, also where its KV is known."""
        means = self.request.submit.pooling is Pooling.MEAN and self.undrawn
        return means or self.wants_prompt_logprobs

    def pools(self, *, draws: bool) -> Pooling | None:
        """What is wanted of the rows of its next chunk."""
        pooling = self.request.submit.pooling
        return pooling if draws or pooling is Pooling.MEAN else None

    @property
    def embedding(self) -> bytes:
        """Its prompt's vector, once all of it was computed; empty where none was asked for."""
        pooling = self.request.submit.pooling
        if pooling is None or self.pooled is None:
            return b""
        count = len(self.request.submit.tokens) if pooling is Pooling.MEAN else 1
        return (self.pooled / count).astype("<f4").tobytes()

    def say(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs] | None = None,
        *,
        finish: Finish | None = None,
        error: str = "",
        wants: int | None = None,
    ) -> Output:
        """An Output for the gateway; on the last, with what this choice cost."""
        gathered = None
        if tokens or finish:
            gathered, self.prompt_logprobs = self.prompt_logprobs, None
        usage = (
            Usage(self.request.prompt_computed, self.request.cached or 0, self.generated)
            if finish
            else None
        )
        return Output(
            self.request.submit.request,
            tokens,
            finish,
            index=self.index,
            logprobs=logprobs,
            usage=usage,
            stop_token=self.stop_token,
            error=error,
            prompt_logprobs=gathered,
            wants=wants,
            embedding=self.embedding if finish in (Finish.LENGTH, Finish.STOP) else b"",
        )
