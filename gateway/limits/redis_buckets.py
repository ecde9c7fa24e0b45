"""Buckets in Redis, shared by every gateway. One script call takes all or none."""

from collections.abc import Sequence

from redis.asyncio import Redis

from gateway.limits.bucket import Ask, Verdict
from gateway.limits.memory import LEASE_MS
from gateway.redis import Script


class RedisBuckets:
    """Server time only, so the clocks of gateways do not matter. Raises RedisError, OSError."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._take = Script(redis, "gateway.limits", "take.lua")
        self._settle = Script(redis, "gateway.limits", "settle.lua")

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        keys = [ask.bucket for ask in asks] + ([] if lease is None else [lease])
        numbers = [number for ask in asks for number in (ask.limit, ask.cost)]
        wait, binding, *levels = await self._take(keys, [*numbers, LEASE_MS])
        return Verdict(wait, binding, levels)

    async def settle(self, ask: Ask, lease: str) -> None:
        await self._settle([ask.bucket, lease], [ask.limit, ask.cost])

    async def close(self) -> None:
        await self._redis.aclose()
