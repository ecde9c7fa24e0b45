"""Asks one line as a live request would be asked, behind all of those, and again where it may help.

A line that was refused for lack of room, or whose engine was lost, is asked again later: nobody
was shown a part of its answer. It leaves half of a rate to live requests of the same project.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from http import HTTPStatus

import msgspec
import orjson

from gateway.batches.attempt import Attempt
from gateway.batches.lines import Line
from gateway.batches.repository import Claim
from gateway.errors import (
    DeadlineExceeded,
    EngineFailed,
    GatewayError,
    InvalidRequest,
    NeverWithinTokenLimit,
)
from gateway.http import Message, Reply
from gateway.identity.principal import Principal
from gateway.inference.body import Object
from gateway.inference.order import Order
from gateway.inference.pipeline import Endpoint, Pipeline
from gateway.inference.services import Services, TariffOf
from gateway.inference.tier import BATCH_PRIORITY
from gateway.limits.lease import Headroom
from gateway.usage.record import Finished, Started

MOST_FAILURES = 3  # of an engine, or of ours, at one line
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
POLITE_S = 0.5  # between two looks at what live requests leave
BATCHES = "batches"  # as the request log calls where a line came from
RATE_S = 60.0  # a limit that is whole again within this is a rate

log = logging.getLogger(__name__)

PrincipalOf = Callable[[str], Principal]  # by key; raises Unauthenticated


class LineFault(GatewayError):
    """A fault of our own code, at one line."""

    def __init__(self) -> None:
        super().__init__("The server had an error; it was logged.")


FAILURES = (EngineFailed, DeadlineExceeded, LineFault)  # may not come again


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    claim: Claim
    text: str  # a line of a file
    failed: bool
    attempt: Attempt

    @property
    def used(self) -> tuple[Started, Finished] | None:
        """For its bill; None where no engine was asked. It counts where the line was begun first,
        so that every attempt's bill would be of the same day."""
        begun, ended = self.attempt.begun, self.attempt.ended
        if begun is None or ended is None:
            return None
        at_ns = int(self.claim.begun_at.timestamp() * 1_000_000) * 1000
        return msgspec.structs.replace(begun, at_ns=at_ns), ended


class LineRequest:
    """What the pipeline wants of a request, where no connection is behind it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def header(self, name: bytes) -> bytes:
        return b""

    async def json_body(self, limit: int) -> bytes:
        return self._body

    def until_gone(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


class Asker:
    """Belongs to one event loop. ``tariff`` is of the batch tier."""

    def __init__(
        self,
        services: Services,
        endpoints: Mapping[str, Endpoint],
        principal_of: PrincipalOf,
        *,
        tariff: TariffOf,
        at_once: int,
    ) -> None:
        """``at_once``: lines of all batches that are with an engine; those that wait are none."""
        self._do = services
        self.endpoints = endpoints
        self._principal_of = principal_of
        self._tariff = tariff
        self._slots = asyncio.Semaphore(at_once)

    async def ask(
        self, line: Line, claim: Claim, *, key: str, endpoint: str, stop: asyncio.Event
    ) -> Answered | None:
        """None: it was told to stop before there was an answer."""
        failures, wait, turn = 0, FIRST_WAIT_S, 0
        while not stop.is_set():
            turn += 1
            number = f"{claim.attempt}.{turn}"
            attempt = Attempt(self._do.limiter, f"{claim.request}~{number}")
            work = _behind(self.endpoints[endpoint], number)
            principal: Principal | None = None
            try:
                principal = self._principal_of(key)
                await self._give_way(principal, stop)
                async with self._slots:
                    return await self._once(line, claim, attempt, principal, endpoint=work)
            except GatewayError as error:
                if attempt.begun is None and principal is not None:
                    self._do.refusals.note(principal, error, endpoint=BATCHES, model=line.model,
                                           request=claim.request)  # fmt: skip
                failures += isinstance(error, FAILURES)
                if failures >= MOST_FAILURES or not _passes(error):
                    return _refused(line, claim, error, attempt)
                await attempt.discard()
                wait = min(error.retry_after or wait * 2, LONGEST_WAIT_S)
            except BaseException:
                await attempt.discard()
                raise
            await pause(stop, wait)
        return None

    async def _once(
        self, line: Line, claim: Claim, attempt: Attempt, who: Principal, *, endpoint: Endpoint
    ) -> Answered:
        """Raises GatewayError."""
        heard = _Heard()
        reply = Reply(heard, claim.request)
        services = replace(self._do, recorder=attempt, limiter=attempt, tariff=self._tariff)
        try:
            await Pipeline(services).answer(who, LineRequest(line.body), reply, endpoint)
        except GatewayError:
            raise
        except Exception as error:
            self._do.metrics.faults.total += 1
            log.exception("unexpected error at a line of a batch, %s", claim.request)
            raise LineFault from error
        return _answered(line, claim, attempt, reply.status, heard.body)

    async def _give_way(self, principal: Principal, stop: asyncio.Event) -> None:
        while not stop.is_set() and _is_scarce(await self._do.limiter.headroom(principal)):
            await pause(stop, POLITE_S)


class _Heard:
    """Where a reply goes that is sent whole."""

    def __init__(self) -> None:
        self.body = b""

    async def __call__(self, message: Message) -> None:
        self.body += message.get("body", b"")


def _behind(endpoint: Endpoint, attempt: str) -> Endpoint:
    async def take(body: Object, principal: Principal, request: str) -> Order:
        order = await endpoint.take(body, principal, request)
        if order.options.stream:
            raise InvalidRequest("A line of a batch cannot be streamed.", param="stream")
        return msgspec.structs.replace(order, priority=BATCH_PRIORITY, attempt=attempt)

    return replace(endpoint, take=take)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Ends early where it is told to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _passes(error: GatewayError) -> bool:
    """Whether asking again later may bring an answer."""
    if isinstance(error, FAILURES):
        return True
    if isinstance(error, NeverWithinTokenLimit) or error.status not in (
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ):
        return False
    return error.retryable is not False or error.retry_after is not None


def _is_scarce(headroom: Headroom) -> bool:
    """Less than half of a rate is left."""
    return any(
        limit and left is not None and reset <= RATE_S and 2 * left < limit - 1
        for limit, left, reset in (
            (headroom.limit_requests, headroom.remaining_requests, headroom.reset_requests),
            (headroom.limit_tokens, headroom.remaining_tokens, headroom.reset_tokens),
        )
    )


def _answered(line: Line, claim: Claim, attempt: Attempt, status: int, body: bytes) -> Answered:
    head = orjson.dumps({"id": _id(claim), "custom_id": line.custom_id})[:-1]
    said = orjson.dumps({"status_code": int(status), "request_id": claim.request})[:-1]
    text = head + b',"response":' + said + b',"body":' + body + b'},"error":null}'
    return Answered(
        claim=claim, text=text.decode(), failed=status != HTTPStatus.OK, attempt=attempt
    )


def _refused(line: Line, claim: Claim, error: GatewayError, attempt: Attempt) -> Answered:
    return _answered(line, claim, attempt, error.status, orjson.dumps(error.body()))


def _id(claim: Claim) -> str:
    return claim.request.replace("req_", "batch_req_", 1)


def unanswered(custom_id: str, request: str, code: str, message: str) -> str:
    """The line of the error file for one that was never asked to its end."""
    return orjson.dumps(
        {
            "id": request.replace("req_", "batch_req_", 1),
            "custom_id": custom_id,
            "response": None,
            "error": {"code": code, "message": message},
        }
    ).decode()
