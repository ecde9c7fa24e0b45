"""Buckets in Redis, shared by every gateway. One script call takes all or none.

Every few seconds of traffic each gateway also says that it lives, so that all know by how many
the limits are shared should Redis be lost.
"""

import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from redis.asyncio import Redis

from gateway.limits.bucket import Ask, Verdict
from gateway.limits.memory import LEASE_MS
from gateway.redis import Script

GATEWAYS = "lt:gateways"
BEAT_S = 5.0
ALIVE_S = 20


class RedisBuckets:
    """Server time only, so the clocks of gateways do not matter. Raises RedisError, OSError."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        self._name = uuid4().hex
        self._beat = Script(redis, "gateway.limits", "beat.lua")
        self._next_beat = 0.0
        self.gateways = 1  # with traffic in the last ALIVE_S seconds, as last heard
        self._take = Script(redis, "gateway.limits", "take.lua")
        self._settle = Script(redis, "gateway.limits", "settle.lua")

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        keys = [ask.bucket for ask in asks] + ([] if lease is None else [lease])
        numbers = [number for ask in asks for number in (ask.limit, ask.cost)]
        wait, binding, *levels = await self._take(keys, [*numbers, LEASE_MS])
        if self._clock() >= self._next_beat:
            self._next_beat = self._clock() + BEAT_S
            (self.gateways,) = await self._beat([GATEWAYS], [self._name, ALIVE_S])
        return Verdict(wait, binding, levels)

    async def settle(self, ask: Ask, lease: str) -> None:
        await self._settle([ask.bucket, lease], [ask.limit, ask.cost])

    async def close(self) -> None:
        await self._redis.aclose()
