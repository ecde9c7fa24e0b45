"""One admitted request: recorded, generated, settled, answered.

The end is recorded and the reservation settled exactly once, in any outcome and before the last
bytes. A client that leaves is billed by the engine's count, an engine that dies by what arrived
from it.
"""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Protocol

import msgspec

from gateway.background import to_the_end
from gateway.errors import AdapterRetired, DeadlineExceeded, EngineFailed, EngineLost, GatewayError
from gateway.http import ClientGone, Reply
from gateway.inference.answer import Answer, Counts, Written
from gateway.inference.frames import Frames
from gateway.inference.generation import Generation
from gateway.inference.meter import Purse
from gateway.inference.order import Order
from gateway.inference.services import Services
from gateway.inference.stream import gather, stream
from gateway.limits.lease import Demand, Lease, More, Price
from gateway.texts.exchange import Exchange
from gateway.usage.pricing import Tariff, billable, cost
from gateway.usage.record import Finished, Outcome, Started

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GRACE_SECONDS = 5.0  # what an engine may take beyond its deadline before we stop waiting


class Asked(Protocol):
    """A request's body and headers, and whether somebody still waits for its answer."""

    def header(self, name: bytes) -> bytes: ...

    async def json_body(self, limit: int) -> bytes: ...

    def until_gone(self) -> AbstractAsyncContextManager[None]: ...


class Hold(msgspec.Struct, frozen=True):
    """What one request holds, and what it may cost."""

    lease: Lease
    demand: Demand
    tariff: Tariff | None


def price_of(tariff: Tariff | None) -> Price | None:
    if tariff is None:
        return None
    return Price(input=tariff.input, cached_input=tariff.cached_input, output=tariff.output)


class Call:
    """Belongs to one event loop. ``run`` it once."""

    def __init__(
        self, services: Services, order: Order, hold: Hold, *, frames: Frames, reply: Reply
    ) -> None:
        self._do, self._order, self._lease = services, order, hold.lease
        self._tariff = hold.tariff
        self._frames, self._reply = frames, reply
        self._purse = None
        if hold.lease.purses:
            prompts = len(order.prompts)
            self._purse = Purse(services.limiter, hold.lease, hold.demand, prompts=prompts)
        submits = order.submits(self._purse)
        self._answer = Answer(order, services.tokenizer_of(order.target.base_model))
        stopped = self._answer.stopped
        crew = services.fleet.of(order.target.base_model)
        self._timing = services.metrics.timing(frames.endpoint)
        self._timing.whole = whole = order.plain and not order.options.stream
        self._generation = Generation(crew, submits, self._purse, stopped=stopped, whole=whole)

    async def run(self, request: Asked) -> None:
        """Raises GatewayError where nothing was sent yet, ClientGone when nobody waits."""
        await self._begin()
        self._reply.admitted = True
        outcome, written = Outcome.FAILED, list[Written]()
        failure: GatewayError | None = None
        try:
            longest = self._order.deadline_ms / 1000 + GRACE_SECONDS
            async with asyncio.timeout(longest), request.until_gone():
                written = await self._until_retired()
            outcome = Outcome.COMPLETED
        except ClientGone:
            outcome = Outcome.CANCELLED
        except (TimeoutError, DeadlineExceeded):
            outcome = Outcome.DEADLINE
            failure = DeadlineExceeded("The answer was not complete in time.")
        except AdapterRetired as error:
            outcome, failure = Outcome.DEADLINE, error
        except EngineLost as error:
            outcome, failure = Outcome.ENGINE_LOST, error
        except GatewayError as error:
            failure = error
        finally:
            counts = await to_the_end(self._close(outcome))
        if outcome is Outcome.CANCELLED:
            raise ClientGone
        await self._send_last(failure, written, counts)

    async def _until_retired(self) -> list[Written]:
        """Raises AdapterRetired once nothing may run on its adapter any more."""
        residents, adapter = self._do.residents, self._order.target.adapter_id
        if residents is None or adapter is None:
            return await self._generate()
        try:
            async with asyncio.timeout(None) as retired:
                with residents.limiting(adapter, retired):
                    return await self._generate()
        except TimeoutError:
            if not retired.expired():
                raise
            raise AdapterRetired(self._order.target.public_name) from None

    async def _begin(self) -> None:
        try:
            await self._do.recorder.started(self._started())
        except GatewayError:
            await self._do.limiter.settle(self._lease, 0)
            raise

    async def _generate(self) -> list[Written]:
        answer, heard, written = self._answer, self._timing.heard, list[Written]()
        if self._order.options.stream:
            await stream(self._generation, answer, self._frames, reply=self._reply, heard=heard)
        else:
            written = await gather(self._generation.batches(), answer, heard=heard)
        if not self._answer.complete and self._purse is not None and self._purse.why is not None:
            await self._cut(self._purse.why, written)
        if not self._answer.complete:
            raise EngineFailed("The engine ended this request without a reason.")
        return self._answer.best(written)

    async def _cut(self, why: More, written: list[Written]) -> None:
        """The money is used up: what was generated is the answer."""
        said = {"code": why.code, "message": why.message}
        gained = self._answer.cut(said)
        if self._order.options.stream:
            await self._reply.write(b"".join(self._frames.chunk(i, delta) for i, delta in gained))
        else:
            for index, delta in gained:
                written[index].add(delta)

    async def _send_last(
        self, failure: GatewayError | None, written: list[Written], counts: Counts
    ) -> None:
        if failure is not None and not self._reply.begun:
            raise failure
        if failure is not None:
            self._reply.facts["error"] = failure.detail_code
            self._reply.broken = failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            await self._reply.end(self._frames.failed(failure))
        elif self._order.options.stream:
            last = self._frames.closing(counts)
            await self._frames.keep()
            await self._reply.end(last)
        else:
            whole = self._frames.whole(written, counts)
            await self._frames.keep()
            await self._reply.json(whole)

    async def _close(self, outcome: Outcome) -> Counts:
        """Stop the engine, then write down and settle what it did."""
        for position, outputs in await self._generation.close():
            self._answer.count(position, outputs)
        counts = self._answer.counts()
        try:
            await self._do.recorder.finished(self._finished(outcome, counts))
        finally:
            # Cached prompt tokens cost next to nothing, so they count for no rate.
            await self._do.limiter.settle(
                self._lease, counts.total - counts.cached, self._cost(outcome, counts)
            )
        self._measure(outcome, counts)
        self._keep()
        self._reply.facts |= {
            "model": self._order.target.public_name,
            "outcome": outcome,
            "finish_reason": self._answer.finish,
            "prompt_tokens": counts.prompt,
            "cached_tokens": counts.cached,
            "completion_tokens": counts.completion,
        }
        return counts

    def _keep(self) -> None:
        """What was asked and answered, where its project wants that kept."""
        order = self._order
        if self._do.texts is None or order.principal.text_days == 0:
            return
        self._do.texts.keep(
            Exchange(
                request=order.id,
                organisation=order.principal.organisation,
                project=order.principal.project,
                customer=order.options.customer,
                base=order.target.base_model,
                prompts=order.prompts,
                answers=self._answer.said,
                ended_at=datetime.now(UTC),
                days=order.principal.text_days,
            )
        )

    def _cost(self, outcome: Outcome, counts: Counts) -> int:
        """As the ledger will say."""
        if self._tariff is None:
            return 0
        tokens = billable(
            outcome, prompt=counts.prompt, cached=counts.cached, completion=counts.completion
        )
        return cost(self._tariff, tokens).total

    def _measure(self, outcome: Outcome, counts: Counts) -> None:
        self._timing.finished()
        self._do.metrics.count_outcome(self._frames.endpoint, outcome)
        self._do.metrics.count_tokens(
            self._order.principal.project,
            self._order.target.public_name,
            prompt=counts.prompt,
            cached=counts.cached,
            completion=counts.completion,
        )

    def _started(self) -> Started:
        order, target = self._order, self._order.target
        return Started(
            request=order.id,
            organisation=order.principal.organisation,
            project=order.principal.project,
            key=order.principal.key,
            model=target.public_name,
            base_model=target.base_model,
            adapter_id=target.adapter_id,
            digest=target.adapter.digest if target.adapter else None,
            endpoint=self._frames.endpoint,
            prompt_tokens=order.prompt_tokens,
            at_ns=_nanoseconds(self._lease.at) if self._lease.at else time.time_ns(),
            user=order.options.customer,
            price=self._tariff.id if self._tariff else "",
        )

    def _finished(self, outcome: Outcome, counts: Counts) -> Finished:
        return Finished(
            request=self._order.id,
            outcome=outcome,
            prompt_tokens=counts.prompt,
            cached_tokens=counts.cached,
            completion_tokens=counts.completion,
            finish_reason=self._answer.finish,
            engine=self._generation.engine,
            boot=self._generation.boot,
            at_ns=time.time_ns(),
            first_ns=self._timing.first_ns,
            token_ns=self._timing.token_ns(counts.completion // self._order.choices),
        )


def _nanoseconds(moment: datetime) -> int:
    """The ledger counts a request in the period in which its budget did."""
    return int((moment - EPOCH) / timedelta(microseconds=1)) * 1000
