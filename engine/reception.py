"""Takes requests up, or refuses them: between a message and the sequences that the loop computes.

Belongs to the engine loop's thread.
"""

import random
from collections.abc import Callable
from typing import Generic

from engine.admission import Limits, Refusal
from engine.book import Book, Say
from engine.built import Built
from engine.config import EngineConfig
from engine.deadlines import Deadlines
from engine.door import Door
from engine.handoff.handoffs import Handoffs
from engine.masking import Masking
from engine.metrics import EngineMetrics
from engine.protocol import Goodbye, RefusalCode, Refused, Role, Submit
from engine.request import Request
from engine.residency import P
from engine.scheduler import Scheduler
from engine.sequence import Sequence


class Reception(Generic[P]):
    def __init__(
        self,
        config: EngineConfig,
        limits: Limits,
        scheduler: Scheduler[P],
        book: Book,
        masking: Masking,
        metrics: EngineMetrics,
        *,
        handoffs: Handoffs | None,
        eos: frozenset[int],
        say: Say,
        clock: Callable[[], float],
        entropy: random.Random,
    ) -> None:
        """``eos``: the tokens that end an answer of this base; ``entropy``: seeds for requests
        that name none."""
        self._limits, self._scheduler, self._book = limits, scheduler, book
        self._masking, self._metrics, self._handoffs = masking, metrics, handoffs
        self._eos, self._say, self._clock, self._entropy = eos, say, clock, entropy
        self._door = Door(config, scheduler, book)
        self._requests = self._sequences = 0  # so far
        self.deadlines = Deadlines(book.find)

    def submit(self, connection: int, submit: Submit, *, draining: bool) -> None:
        """Refuses it, or takes it up."""
        if self._book.find(connection, submit.request):
            # No answer could say which of the two it is about.
            self._say(connection, Goodbye(f"request {submit.request} is already open"))
            return
        try:
            self._accept(connection, submit, draining=draining)
        except Refusal as refusal:
            self._metrics.refused(refusal.code.value)
            self._say(
                connection,
                Refused(submit.request, refusal.code, refusal.detail, refusal.retry_ms),
            )

    def _accept(self, connection: int, submit: Submit, *, draining: bool) -> None:
        """Raises Refusal."""
        if draining:
            raise Refusal(RefusalCode.DRAINING, "this engine is leaving")
        limit = self._limits.admit(submit)
        if self._handoffs:
            self._handoffs.require_new(submit)
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
        self._book.add(request)
        if self._handoffs:
            self._handoffs.add(request, now)
        for sequence in request.choices:
            self._scheduler.add(sequence)
        self.deadlines.add(request)

    def _choice(self, request: Request, index: int) -> Sequence:
        self._sequences += 1
        given = request.submit.sampling.seed
        seed = self._entropy.getrandbits(63) if given is None else derive_seed(given, index)
        return Sequence(number=self._sequences, request=request, index=index, seed=seed)


def limits_of(
    config: EngineConfig, built: Built[P], *, adapters: bool, grammars: bool, handoffs: bool
) -> Limits:
    """``adapters``, ``grammars``, ``handoffs``: whether this engine has what they need."""
    return Limits(
        vocab_size=built.base.vocab_size,
        max_model_len=built.max_model_len,
        num_pages=built.num_pages,
        page_tokens=config.page_tokens,
        adapters=adapters,
        grammars=grammars,
        image_tokens=built.base.image_tokens,
        image_side=built.base.image_side,
        gives=handoffs and config.role is not Role.DECODE,
        takes=handoffs and config.takes,
    )


def derive_seed(seed: int, index: int) -> int:
    """A choice's own seed in 0 .. 2**64-1; the first choice keeps the request's, modulo 2**64."""
    return (seed + index * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
