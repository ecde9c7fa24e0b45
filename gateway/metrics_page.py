"""``/metrics`` on its own port, never the tenants': the gateway's and its local engine's.

``/counters`` beside it shows the live counters of budgets and every open reservation.
"""

import msgspec

from engine.stream import EngineLost
from gateway.errors import GatewayError, RouteNotFound
from gateway.fleet.fleet import Fleet
from gateway.http import Receive, Reply, Request, Scope, Send
from gateway.ids import new_id
from gateway.limits.limiter import RateLimiter
from gateway.metrics import Metrics
from gateway.metrics_names import Names

ENGINE_SECONDS = 2.0  # the longest wait for the engine's part
TEXT = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}


class MetricsPage:
    """A raw ASGI application. Belongs to one event loop."""

    def __init__(self, metrics: Metrics, fleet: Fleet) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self.limiter: RateLimiter | None = None  # until the gateway has opened
        self.names: Names | None = None  # what engines' digests and tenants are called

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, reply = Request(scope, receive), Reply(send, new_id("req"))
        try:
            request.require_method("GET", "HEAD")
            if request.path == "/counters" and self.limiter is not None:
                await reply.json(msgspec.json.encode(await self.limiter.purses()))
                return
            if request.path != "/metrics":
                raise RouteNotFound("Only /metrics and /counters are here.")
        except GatewayError as error:
            await reply.error(error)
            return
        self._metrics.engines_ready.set(len(self._fleet.ready))
        if self.limiter is not None:
            self._metrics.limits_degraded.set(self.limiter.degraded)
            self._metrics.local_grants.set(self.limiter.local_grants)
            self._metrics.reserved.set(self.limiter.open)
        await reply.whole(self._metrics.text() + await self._engine(), TEXT)

    async def _engine(self) -> bytes:
        """Of the engine beside us; others are scraped where they are (``--metrics-port``)."""
        for member in self._fleet.ready:
            if member.name.startswith("unix:") and (client := member.client):
                try:
                    text = await client.metrics(timeout_s=ENGINE_SECONDS)
                except (EngineLost, TimeoutError):
                    return b""
                return (self.names.told(text) if self.names else text).encode()
        return b""
