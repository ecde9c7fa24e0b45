"""Engines that say in Redis that they are there. See ``engine/beats.py``.

A sorted set holds each engine's address with the moment, of Redis's own clock, until which it
counts. Nobody has to take out one that died.
"""

from collections.abc import Sequence
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.beats import KEY
from gateway import redis
from gateway.config import Secret
from gateway.fleet.unavailable import DirectoryUnavailable

TIMEOUT_S = 2.0


class Beating:
    """A directory. Belongs to one event loop."""

    def __init__(self, client: Redis, key: str = KEY) -> None:
        self._client, self._key = client, key
        self._living = redis.Script(client, "gateway.fleet", "living.lua")

    @classmethod
    def at(cls, url: Secret, name: str = "") -> Self:
        key = f"{KEY}:{name}" if name else KEY
        return cls(redis.connect(url, timeout_s=TIMEOUT_S), key)

    @property
    def known(self) -> Sequence[str]:
        return ()

    @property
    def changes(self) -> bool:
        return True

    async def look(self) -> Sequence[str]:
        try:
            found = await self._living([self._key], [])
        except (RedisError, OSError, TimeoutError) as error:
            raise DirectoryUnavailable(f"redis:{self._key}: {error}") from error
        return [address.decode("utf-8", "replace") for address in found]
