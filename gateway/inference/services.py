"""What a request needs on its way, made once by the composition root."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.catalog.target import Target
from gateway.fleet.fleet import Fleet
from gateway.idempotency.answers import Answers, MemoryAnswers
from gateway.inference.gate import Gate
from gateway.inference.tokenizer import Tokenizer
from gateway.limits.lease import Limiter
from gateway.metrics import Metrics
from gateway.refusals.tally import Tally
from gateway.texts.exchange import Texts
from gateway.tracing import Tracing
from gateway.usage.pricing import Tariff
from gateway.usage.record import Finished, Started

TariffOf = Callable[[Target, datetime], Tariff | None]


def unpriced(target: Target, at: datetime) -> Tariff | None:
    """The tariff where nothing has a price."""
    return None


class Recorder(Protocol):
    async def started(self, record: Started) -> None:
        """Survives a kill -9. Raises GatewayError when nothing can be recorded."""
        ...

    async def finished(self, record: Finished) -> None:
        """Returns once the record is durable."""
        ...


class Residents(Protocol):
    def using(self, adapter_id: str | None) -> AbstractContextManager[None]:
        """While a request runs on an adapter."""
        ...

    def limiting(
        self, adapter_id: str | None, limit: asyncio.Timeout
    ) -> AbstractContextManager[None]:
        """Inside, ``limit`` is set to when the adapter ends, should it be retired."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    gate: Gate
    limiter: Limiter
    recorder: Recorder
    fleet: Fleet
    tokenizer: Tokenizer  # of the first base
    metrics: Metrics
    max_body_bytes: int
    max_inflight: int
    refusals: Tally = field(default_factory=Tally)
    answers: Answers = field(default_factory=MemoryAnswers)
    tariff: TariffOf = unpriced
    tracing: Tracing | None = None  # None: requests are not traced
    texts: Texts | None = None  # None: no text is kept
    residents: Residents | None = None  # None: nobody waits for adapters to be free
    other_tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)  # by base

    def tokenizer_of(self, base: str) -> Tokenizer:
        return self.other_tokenizers.get(base, self.tokenizer)
