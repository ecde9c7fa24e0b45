"""Local servers that answer as Stripe and OpenMeter document they do, over real HTTP.

Stripe: form-encoded meter events, an identifier known for 24 hours, times of the last 35 days,
whole numbers, a meter that must exist; sums by customer and hour. OpenMeter: CloudEvents, known by
source and id, answered with 204 whether they are new or not; events found by id.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

DAY = 86_400
TOKEN = "sk_test_secret"


@dataclass
class Faults:
    """What befalls the next requests, in turn: a status, "lost" (taken, then 500 with nothing
    said), "slow" (taken, answered after the client has gone), "drop" (500, not taken)."""

    planned: list[int | str] = field(default_factory=list)

    def next(self) -> int | str | None:
        return self.planned.pop(0) if self.planned else None


class SinkServer:
    """What both have: faults, a clock, and what was asked of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.faults, self.requests = clock, Faults(), 0
        self.url = ""

    async def answer(self, request: Request, take: Callable[[], Response]) -> Response:
        self.requests += 1
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": {"type": "invalid_request_error"}}, 401)
        match self.faults.next():
            case None:
                return take()
            case "lost":
                take()
                return JSONResponse({"error": {"type": "api_error"}}, 500)
            case "slow":
                take()
                await asyncio.sleep(1.0)
                return Response(status_code=504)
            case "drop":
                return Response(status_code=503)
            case 429:
                return JSONResponse({"error": {"code": "rate_limit"}}, 429, {"retry-after": "7"})
            case status:
                return JSONResponse({"error": {"code": "no"}}, int(status))


class StripeServer(SinkServer):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.known: dict[str, float] = {}  # identifier -> when it came
        self.events: list[dict[str, str]] = []
        self.meters = {"mtr_1": "loratorio_cost"}
        self.customers = {"cus_1"}

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/billing/meter_events", self._post, methods=["POST"]),
                Route("/v1/billing/meters", self._meters),
                Route("/v1/billing/meters/{id}/event_summaries", self._summaries),
            ]
        )

    def sum(self) -> int:
        return sum(int(event["payload[value]"]) for event in self.events)

    async def _post(self, request: Request) -> Response:
        assert "idempotency-key" not in request.headers
        form = {name: values[0] for name, values in parse_qs(await _text(request)).items()}
        return await self.answer(request, lambda: self._take(form))

    def _take(self, form: dict[str, str]) -> Response:
        now, name = self.clock(), form["identifier"]
        if form["event_name"] not in self.meters.values():
            return _refused("no meter of that event name", code="no_meter")
        if not now - 35 * DAY <= int(form["timestamp"]) <= now + 300:
            return _refused("timestamp too far", code="timestamp_too_far_in_past")
        int(form["payload[value]"])
        if len(name) > 100:
            return _refused("identifier too long")
        if now - self.known.get(name, -DAY * 99) < DAY:
            return _refused(f"An event already exists with identifier {name}.")
        self.known[name] = now
        if form["payload[stripe_customer_id]"] in self.customers:
            self.events.append(form)
        return JSONResponse({"object": "billing.meter_event", "identifier": name})

    async def _meters(self, request: Request) -> Response:
        names = list(self.meters.items())
        data = [{"id": id, "event_name": name} for id, name in names]
        return await self.answer(request, lambda: JSONResponse({"data": data, "has_more": False}))

    async def _summaries(self, request: Request) -> Response:
        asked = request.query_params
        start, end = int(asked["start_time"]), int(asked["end_time"])
        assert asked["value_grouping_window"] == "hour"
        assert start % 3600 == end % 3600 == 0
        counted = [
            int(event["payload[value]"])
            for event in self.events
            if event["event_name"] == self.meters[request.path_params["id"]]
            and event["payload[stripe_customer_id]"] == asked["customer"]
            and start <= int(event["timestamp"]) < end
        ]
        data = [{"aggregated_value": float(sum(counted)), "start_time": start}] if counted else []
        return await self.answer(request, lambda: JSONResponse({"data": data}))


class OpenMeterServer(SinkServer):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.events: dict[tuple[str, str], dict] = {}

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/v1/events", self._post, methods=["POST"]),
                Route("/api/v1/events", self._list, methods=["GET"]),
            ]
        )

    def sum(self) -> int:
        return sum(int(event["data"]["cost_nano_usd"]) for event in self.events.values())

    async def _post(self, request: Request) -> Response:
        event = await request.json()
        assert request.headers["content-type"] == "application/cloudevents+json"
        return await self.answer(request, lambda: self._take(event))

    def _take(self, event: dict) -> Response:
        if event.get("specversion") != "1.0" or not all(
            isinstance(event.get(name), str) and event[name]
            for name in ("id", "source", "type", "subject", "time")
        ):
            return JSONResponse({"title": "Bad Request"}, 400)
        self.events.setdefault((event["source"], event["id"]), event)
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        asked = request.query_params["id"]
        found = [{"event": e} for (_, id), e in self.events.items() if asked in id]
        return await self.answer(request, lambda: JSONResponse(found))


@asynccontextmanager
async def served(server: SinkServer) -> AsyncIterator[None]:
    """On a port of its own, in this event loop."""
    config = uvicorn.Config(server.app, port=0, log_level="error", lifespan="off", loop="none")
    runner = uvicorn.Server(config)
    task = asyncio.create_task(runner.serve())
    deadline = time.monotonic() + 10
    while not runner.started:
        assert time.monotonic() < deadline, "the server did not start"
        await asyncio.sleep(0.005)
    port = runner.servers[0].sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield
    finally:
        runner.should_exit = True
        runner.force_exit = True
        await task


def _refused(message: str, code: str = "") -> Response:
    return JSONResponse({"error": {"message": message, "code": code}}, 400)


async def _text(request: Request) -> str:
    return (await request.body()).decode()
