"""Counters in Redis, shared by every gateway. One script call takes all or none.

Every few seconds of traffic each gateway also says that it lives, so that all know by how many
the limits are shared should Redis be lost.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from gateway.limits.store import BUSY_MS, LEASE_MS, SLOT_MS, Ask, Extension, Open, Verdict
from gateway.redis import Script

GATEWAYS = "lt:gateways"
BEAT_S = 5.0
ALIVE_S = 20
OPEN = b"open "
WORDS = {"concurrent requests": "slots"}  # units as scripts call them: one word


class RedisStore:
    """Server time only, so the clocks of gateways do not matter. Raises RedisError, OSError."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        self._name = uuid4().hex
        self._next_beat = 0.0
        self.gateways = 1  # with traffic in the last ALIVE_S seconds, as last heard
        self._beat, self._admit, self._extend, self._settle, self._seed, self._prune = (
            Script(redis, "gateway.limits", f"{name}.lua")
            for name in ("beat", "admit", "extend", "settle", "seed", "prune")
        )

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        keys = [ask.key for ask in asks] + ([] if lease is None else [lease])
        facts: list[str | int] = [LEASE_MS, SLOT_MS, BUSY_MS]
        for ask in asks:
            unit = WORDS.get(ask.unit, ask.unit)
            facts += (ask.kind, unit, ask.limit, ask.cost, ask.least, ask.ends_ms)
        wait, *rest = await self._admit(keys, facts)
        if self._clock() >= self._next_beat:
            self._next_beat = self._clock() + BEAT_S
            (self.gateways,) = await self._beat([GATEWAYS], [self._name, ALIVE_S])
        if wait < 0:
            return Verdict(0, 0, [], [], unseeded=rest)
        binding, money, *levels = rest
        return Verdict(wait, binding, levels[::2], levels[1::2], money)

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        facts = [held, asks[0].cost, asks[0].least]
        for ask in asks:
            facts += (ask.limit, int(ask.soft))
        money, *rest = await self._extend([lease, *(ask.key for ask in asks)], facts)
        return Extension(0, unseeded=True) if money < 0 else Extension(money, rest[0])

    async def settle(
        self, lease: str, *, tokens: int, money: int, lost: Sequence[Ask] = ()
    ) -> bool:
        await self._settle([lease, *(ask.key for ask in lost)], [tokens, money])
        return True

    async def seed(self, ask: Ask, spent: int) -> None:
        await self._seed([ask.key], [spent, ask.ends_ms])

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        seconds, micros = await self._redis.time()
        until = seconds * 1000 + micros // 1000 + SLOT_MS
        pipe = self._redis.pipeline(transaction=False)
        for lease, keys in leases:
            for key in keys:
                pipe.zadd(key, {lease: until}, xx=True)
                pipe.pexpire(key, SLOT_MS + 1000)
        await pipe.execute()

    async def prune(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._prune([key], [])

    async def reservations(self, key: str) -> list[Open]:
        found: Any = await self._redis.hgetall(key)
        return [
            Open(name.removeprefix(OPEN).decode(), int(value.split()[0]))
            for name, value in found.items()
            if name.startswith(OPEN)
        ]

    async def close(self) -> None:
        await self._redis.aclose()
