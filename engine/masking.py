"""Grammars in the loop: requests that wait for theirs, and passes whose draws they limit.

A mask depends on the tokens before it. Where a pass runs ahead of its predecessor's tokens, its
forward part is launched without masks; they are made when those tokens are known, while the
device computes, and the draws are launched then. Where nothing runs ahead, masks are made beside
the pass itself. Either way a pass waits for masks only if they take longer than it does.
Belongs to the engine loop's thread.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np

from engine.book import Book
from engine.matcher import Grammars, Turn
from engine.metrics import EngineMetrics
from engine.planned import Plan, Planned
from engine.protocol import Finish, RefusalCode
from engine.request import Request
from engine.step import Masks, Pending

MASKS_S = 60.0  # work on masks is bounded: more than this means that their thread is lost

Begun = Future[Masks] | None


class Masking:
    def __init__(self, grammars: Grammars | None, book: Book, metrics: EngineMetrics) -> None:
        self._grammars, self._book, self._metrics = grammars, book, metrics
        self._compiling: list[Request] = []

    @property
    def enabled(self) -> bool:
        return self._grammars is not None

    @property
    def compiling(self) -> bool:
        return bool(self._compiling)

    def compile(self, request: Request) -> None:
        if request.submit.grammar is not None:
            assert self._grammars is not None, "admission refuses what no grammar can hold"
            request.grammar = self._grammars.compile(request.submit.grammar)
            self._compiling.append(request)

    def refuse_invalid(self) -> None:
        """Refuse those whose grammar turned out to be none."""
        done = [request for request in self._compiling if not request.compiling]
        if done:
            self._compiling = [request for request in self._compiling if request.compiling]
        for request in done:
            assert request.grammar is not None
            if request.unfinished and (error := request.grammar.exception()):
                self._book.refuse(request, RefusalCode.INVALID, f"grammar: {error}")

    def begin(self, plan: Plan) -> Begun:
        """Make the masks of a pass; every token before it must be known."""
        turns = [
            Turn(
                item.sequence.number,
                item.sequence.matcher,
                [draw.barred for draw in item.chunk.draws],
                item.drafts,
            )
            for item in _masked(plan)
            if item.sequence.matcher and item.chunk.draw
        ]
        return self._grammars.masks(turns) if self._grammars and turns else None

    def draw(self, plan: Plan, pending: Pending, begun: Begun) -> None:
        """Let a launched pass draw, with masks that were begun or are begun now."""
        if not any(item.chunk.draw and item.chunk.draw.masked for item in plan.planned):
            return
        begun, since = begun or self.begin(plan), time.monotonic()
        masks = begun.result(MASKS_S) if begun else Masks({}, np.empty((0, 1), dtype=np.int32))
        self._metrics.masked(time.monotonic() - since, len(masks.rows))
        pending.draw(masks)
        for item in _masked(plan):
            if fault := item.sequence.fault:
                self._book.finish(item.sequence, Finish.ERROR, f"grammar: {fault}")


def _masked(plan: Plan) -> Iterator[Planned]:
    """What is left of a plan that grammars hold to something."""
    for item in plan.planned:
        wanted = item.chunk.draw is not None and item.chunk.draw.masked
        if wanted and not item.sequence.finished:
            yield item
