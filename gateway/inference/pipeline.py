"""One request from its bytes to its bill. Read this file first.

authenticate → parse, resolve, tokenise → reserve         here
             → record the start → generate and stream
             → record the end, settle → last bytes        in call.py
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec import structs

from gateway.errors import (
    EndpointDenied,
    GatewayError,
    InvalidRequest,
    ModelUnpriced,
    NeverWithinTokenLimit,
)
from gateway.http import Reply, Request, listed
from gateway.idempotency.answers import Claim, claim_of
from gateway.identity.principal import Principal
from gateway.inference.body import Object, parse_object
from gateway.inference.call import Asked, Call, Hold, price_of
from gateway.inference.frames import Frames
from gateway.inference.once import HEADER, Patient, give, key_of, replay
from gateway.inference.order import Order
from gateway.inference.room import Room
from gateway.inference.services import Services

Told = Callable[[Object, Principal], Awaitable[dict[str, Any]]]
DEADLINE = "x-request-timeout-ms"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the inference routes."""

    take: Callable[[Object, Principal, str], Awaitable[Order]]
    frames: Callable[..., Frames]  # of an order and a tokenizer, and ``created``


class Pipeline:
    """Belongs to one event loop."""

    def __init__(self, services: Services) -> None:
        self._do = services
        self._room = Room(services.max_inflight, services.metrics.inflight)

    async def serve(self, request: Request, reply: Reply, endpoint: Endpoint) -> None:
        """Answer one request. Raises GatewayError, or ClientGone when nobody waits for it."""
        principal = await self._entered(request, reply)
        if not request.headers(HEADER):
            await self.answer(principal, request, reply, endpoint)
            return
        try:
            claim, body = await self._claimed(principal, request)
            kept = await self._do.answers.claim(claim)
        except GatewayError:
            await self._count(principal, reply)
            raise
        if kept is not None:
            await self._count(principal, reply)
            await replay(kept, reply)
            return
        asked = Patient(request, body)
        await give(claim, self._do.answers, reply,
                   lambda: self.answer(principal, asked, reply, endpoint))  # fmt: skip

    async def _claimed(self, principal: Principal, request: Request) -> tuple[Claim, bytes]:
        key = key_of(request)
        body = await request.json_body(self._do.max_body_bytes)
        asked = request.path.encode() + b"\n" + body
        if principal.models is not None:  # it must not be told what others were answered
            key = b"%b\n%b" % (principal.key.encode(), key)
        return claim_of(principal.organisation, principal.project, key, asked), body

    async def answer(
        self, principal: Principal, request: Asked, reply: Reply, endpoint: Endpoint
    ) -> None:
        """The same, once it is known who asks: a client, or a line of a batch."""
        try:
            body = parse_object(await request.json_body(self._do.max_body_bytes))
            reply.asked = model_of(body)
            order = await endpoint.take(body, principal, reply.request_id)
            order = within_deadline(request, self._within_limits(order))
            self._room.require(principal.project)
        except GatewayError:
            await self._count(principal, reply)  # a request that is refused is one all the same
            raise
        if reply.trace is not None:
            traceparent = reply.trace.infer(order.target.public_name, order.max_tokens)
            order = structs.replace(order, traceparent=traceparent)
        tariff = self._do.tariff(order.target, datetime.now(UTC))
        demand = order.demand(price_of(tariff))
        try:
            lease = await self._do.limiter.reserve(
                principal, order.id, order.reserved_tokens, use=order.use, demand=demand
            )
        except (NeverWithinTokenLimit, ModelUnpriced):  # nothing was asked of any counter
            await self._count(principal, reply)
            raise
        reply.headers.update(lease.headroom.headers())
        if order.options.ignored:
            reply.headers["x-ignored-params"] = listed(order.options.ignored)
        with self._room.taken(principal.project):
            tokenizer = self._do.tokenizer_of(order.target.base_model)
            frames = endpoint.frames(order, tokenizer, created=int(time.time()))
            call = Call(self._do, order, Hold(lease, demand, tariff), frames=frames, reply=reply)
            with self._using(order):
                await call.run(request)

    async def tell(self, request: Request, reply: Reply, told: Told) -> None:
        """Answer what needs no engine. It counts as a request, whatever is in it."""
        principal = await self._entered(request, reply)
        await self._count(principal, reply)
        body = parse_object(await request.json_body(self._do.max_body_bytes))
        reply.asked = model_of(body)
        await reply.json(orjson.dumps(await told(body, principal)))

    async def _entered(self, request: Request, reply: Reply) -> Principal:
        """A key that is not for this path counts all the same. One that is refused for its address
        does not: whoever stole it must not use up its owner's rate."""
        try:
            return await self._do.gate.enter(request, reply)
        except EndpointDenied:
            if reply.caller is not None:
                await self._count(reply.caller, reply)
            raise

    def _using(self, order: Order) -> AbstractContextManager[None]:
        residents, adapter = self._do.residents, order.target.adapter_id
        return residents.using(adapter) if residents and adapter else nullcontext()

    async def _count(self, principal: Principal, reply: Reply) -> None:
        """A request without tokens. Raises RequestsLimited."""
        lease = await self._do.limiter.reserve(principal, reply.request_id, 0)
        reply.headers.update(lease.headroom.headers())
        await self._do.limiter.settle(lease, 0)

    def _within_limits(self, order: Order) -> Order:
        """What is reserved for a client that names no maximum must fit its limits."""
        if order.options.max_tokens is not None:
            return order
        limit = self._do.limiter.tokens_within(order.principal, order.use)
        return structs.replace(order, token_limit=limit)


def model_of(body: Object) -> str:
    """As the client wrote it, whatever becomes of it."""
    model = body.get("model")
    return model if isinstance(model, str) else ""


def within_deadline(request: Asked, order: Order) -> Order:
    """The client may want its answer sooner than the gateway's limit. Raises InvalidRequest."""
    text = request.header(DEADLINE.encode()).decode("latin-1")
    if not text:
        return order
    if not (text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) <= 10):
        raise InvalidRequest(
            f"{DEADLINE}: {text[:20]!r} is not a number of milliseconds from 1 to 9999999999.",
            param=DEADLINE,
        )
    return structs.replace(order, deadline_ms=min(order.deadline_ms, int(text)))
