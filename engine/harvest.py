"""What passes bring: tokens for those who wait for them, the end of those who have all, and counts.

Belongs to the engine loop's thread.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Generic

from engine.book import Book
from engine.config import EngineConfig
from engine.handoff.giving import First
from engine.handoff.handoffs import Handoffs
from engine.metrics import EngineMetrics
from engine.planned import Plan, Planned
from engine.protocol import Finish, Output, TokenLogprobs
from engine.request import Request
from engine.residency import P
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import NO_ADAPTER, Drawn
from engine.under_way import UnderWay, guarded

log = logging.getLogger(__name__)


class Harvest(Generic[P]):
    """``handoffs`` are set once they are made: they hand first tokens back to ``deliver``."""

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler[P],
        book: Book,
        metrics: EngineMetrics,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._scheduler, self._book = config, scheduler, book
        self._metrics, self._clock = metrics, clock
        self.handoffs: Handoffs | None = None
        self._taken_in = float("-inf")  # when the last pass was, seconds
        self._gaps: Counter[float] = Counter()  # seconds between tokens, of one pass

    def ask(self, request: Request) -> int | None:
        """Tokens to ask the gateway's leave for; None: nothing yet."""
        return request.ask(self._config.grant_ahead, self._config.grant_step)

    def take_in(self, under_way: UnderWay) -> None:
        plan, result = under_way.plan, guarded(under_way.result)
        if isinstance(result, Exception):
            self.fail(plan, result)
            return
        self._count_pass(under_way, kept=sum(len(drawn.further) for drawn in result.drawn))
        prompt = generated = 0
        for item, drawn in zip(plan.planned, result.drawn, strict=True):
            if item.sequence.finished:  # before this pass was over
                item.sequence.request.spent -= item.draws
                continue
            before = item.sequence.generated
            prompt += self._absorb(item, drawn)
            generated += item.sequence.generated - before
        self._metrics.tokens(prompt=prompt, generated=generated)
        for seconds, times in self._gaps.items():
            self._metrics.vllm.between(seconds, times)
        self._gaps.clear()

    def fail(self, plan: Plan, error: Exception) -> None:
        log.error("a pass of %d sequences failed", len(plan.planned), exc_info=error)
        self._metrics.failed_step()
        for item in plan.planned:
            item.sequence.request.spent -= item.draws
            if not item.sequence.finished:
                text = f"the forward pass failed ({type(error).__name__})"
                self._book.finish(item.sequence, Finish.ERROR, text)

    def _absorb(self, item: Planned, drawn: Drawn) -> int:
        """Take in what one chunk brought. Returns how many prompt tokens are newly computed."""
        sequence, request = item.sequence, item.sequence.request
        if drawn.failed:
            self._scheduler.distrust(sequence)
            self._book.finish(sequence, Finish.ERROR, drawn.failed)
            return 0
        fresh = sequence.advance(item.stop, item.life, drawn)
        self._scheduler.settle(item)
        if fresh and sequence.prompt_computed == len(request.submit.tokens):
            self._book.note(request)
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
                self._scheduler.distrust(sequence)
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
        self._scheduler.took_tokens(item, count)
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

    def deliver(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """The first token of a prompt that another engine computed."""
        request = sequence.request
        request.spent += 1
        self._book.note(request)
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

    def end_given(self, sequence: Sequence, terminal: Output | None, error: str) -> None:
        """The pages of a prompt computed for another engine have left, or will not."""
        finish = terminal.finish if terminal and terminal.finish else Finish.ERROR
        self._book.finish(sequence, finish, error, terminal)

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
            wants=None if finish else self.ask(sequence.request),
        )

    def _tell(self, sequence: Sequence, output: Output) -> None:
        if output.finish:
            self._book.finish(sequence, output.finish, output=output)
        else:
            self._book.output(sequence.request, output)

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
        whole = seconds if under_way.beside else now - plan.began
        self._scheduler.took(plan, seconds, kept=kept, whole=whole)
        self._metrics.step(seconds, len(rows) - base, base, len(plan.planned))
        for item in plan.planned:
            request, course = item.sequence.request, item.sequence.course
            if course.started is None:
                course.started = started
            if request.first_pass is None:
                request.first_pass = started
                self._metrics.queued(started - request.arrived)
