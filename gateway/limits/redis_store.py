"""Counters in Redis, shared by every gateway. One script call takes all or none.

Every second each gateway also says that it lives, so that all know by how many the limits are
shared should Redis be lost, and learns since when Redis knows anything. A Redis that begins
empty counts money only after ``recovery_ms``: by then each gateway has entered again what its
running requests have reserved, and its ledger has what they used before.
"""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from redis.asyncio import Redis

from gateway.limits.store import (
    BUSY_MS,
    LATE_MS,
    LEASE_MS,
    SLOT_MS,
    Ask,
    Extension,
    Open,
    Purse,
    Verdict,
)
from gateway.redis import Script
from gateway.redis_line import Line

GATEWAYS, BORN = "lt:{gateways}", "lt:{gateways}:since"
PURSES = "lt:{*}:*:money-*"
ALIVE_S = 20
PATIENCE_S = 5.0  # a connection without a reply for so long is given up
OPEN, DONE, GONE = b"open ", b"done ", b"gone "
WORDS = {"concurrent requests": "slots"}  # units as scripts call them: one word


class RedisStore:
    """Server time only, so the clocks of gateways do not matter. Raises RedisError, OSError."""

    def __init__(self, redis: Redis, *, recovery_ms: int = 0) -> None:
        self._redis = redis
        self._line = Line(redis, patience_s=PATIENCE_S)
        self._recovery_ms = recovery_ms
        self._pack = msgspec.msgpack.Encoder().encode
        self._name = uuid4().hex
        self._born_ms = self._watched_ms = 0
        self.gateways = 1  # alive in the last ALIVE_S seconds, as last heard
        scripts = ("beat", "admit", "extend", "settle", "seed", "enter", "release")
        (
            self._beat, self._admit, self._extend, self._settle, self._seed, self._enter,
            self._release,
        ) = (Script(self._line, "gateway.limits", f"{name}.lua") for name in scripts)  # fmt: skip

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        keys = [ask.key for ask in asks]
        if lease is not None:
            keys.append(lease)
        facts: list[str | int] = [LEASE_MS, SLOT_MS, BUSY_MS, LATE_MS]
        for ask in asks:
            facts += (ask.kind, WORDS.get(ask.unit, ask.unit), ask.limit, ask.cost, ask.least,
                      ask.ends_ms, ask.version)  # fmt: skip
        wait, *rest = await self._admit(keys, (self._pack(facts),))
        if wait < 0:
            return Verdict(0, 0, [], [], unseeded=rest)
        binding, money, *levels = rest
        return Verdict(wait, binding, levels[::2], levels[1::2], money)

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        facts = [held, asks[0].cost, asks[0].least, LEASE_MS]
        for ask in asks:
            facts += (ask.limit, int(ask.soft))
        money, *rest = await self._extend([lease, *(ask.key for ask in asks)], facts)
        return Extension(0, unseeded=True) if money < 0 else Extension(money, rest[0])

    async def settle(
        self,
        lease: str,
        *,
        tokens: int,
        money: int,
        lost: Sequence[Ask] = (),
        orphan: bool = False,
    ) -> bool:
        await self._settle([lease, *(ask.key for ask in lost)], [tokens, money, int(orphan)])
        return True

    async def seed(self, ask: Ask, spent: int, *, known: Collection[str]) -> int:
        await self._look()
        facts = (spent, ask.ends_ms, ask.version, self._born_ms + self._recovery_ms)
        (wait,) = await self._seed([ask.key], [*facts, self._recovery_ms, LATE_MS, *known])
        return int(wait)

    async def enter(self, ask: Ask, leases: Sequence[Open]) -> None:
        facts = [fact for each in leases for fact in (each.lease, each.nano)]
        if facts:
            await self._enter([ask.key], [ask.ends_ms, LEASE_MS, LATE_MS, *facts])

    async def known(self, key: str) -> list[str]:
        found: Any = await self._redis.hkeys(key)
        return [
            name[len(OPEN) :].decode() for name in found if name[: len(OPEN)] in (OPEN, DONE, GONE)
        ]

    async def watch(self) -> bool:
        await self._look()
        before, self._watched_ms = self._watched_ms, self._born_ms
        return before not in (0, self._born_ms)

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        seconds, micros = await self._redis.time()
        until = seconds * 1000 + micros // 1000 + SLOT_MS
        pipe = self._redis.pipeline(transaction=False)
        for lease, keys in leases:
            for key in keys:
                pipe.zadd(key, {lease: until}, xx=True)
                pipe.pexpire(key, SLOT_MS + 1000)
        await pipe.execute()

    async def overdue(self, key: str) -> list[str]:
        seconds, micros = await self._redis.time()
        now = seconds * 1000 + micros // 1000
        found: Any = await self._redis.hgetall(key)
        late = [n for n, v in found.items() if n.startswith(OPEN) and int(v.split()[1]) <= now]
        late += [name for name in found if name.startswith(GONE)]
        return [name[len(OPEN) :].decode() for name in late]

    async def release(self, key: str, lease: str) -> None:
        await self._release([key], [lease])

    async def purses(self) -> list[Purse]:
        keys = [key async for key in self._redis.scan_iter(match=PURSES, count=1000)]
        return [_purse(key.decode(), await _all(self._redis, key)) for key in sorted(keys)]

    async def reservations(self, key: str) -> list[Open]:
        return list(_purse(key, await _all(self._redis, key)).open)

    async def close(self) -> None:
        await self._line.close()
        await self._redis.aclose()

    async def _look(self) -> None:
        self.gateways, self._born_ms = await self._beat([GATEWAYS, BORN], [self._name, ALIVE_S])


async def _all(redis: Redis, key: str | bytes) -> dict[bytes, bytes]:
    found: Any = await redis.hgetall(key)
    return dict(found)


def _purse(key: str, fields: dict[bytes, bytes]) -> Purse:
    opened = [(name, value) for name, value in fields.items() if name.startswith(OPEN)]
    return Purse(
        key,
        int(fields[b"spent"]) if b"spent" in fields else None,
        int(fields.get(b"held", 0)),
        tuple(Open(name.removeprefix(OPEN).decode(), int(v.split()[0])) for name, v in opened),
        int(fields.get(b"version", 0)),
    )
