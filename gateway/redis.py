"""Redis: connections with a deadline, key names, scripts by hash, and news of changes.

Redis holds nothing that cannot be lost. Keys carry ``{organisation}``, so that everything one
script touches is in one cluster slot.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from gateway.config import Secret

log = logging.getLogger(__name__)

CHANNEL = "loratorio:epoch"  # a message says: look at the epoch now
RETRY_S = 2.0


def connect(url: Secret, *, timeout_s: float) -> Redis:
    """Connects when it is first used; every reply is awaited at most ``timeout_s``."""
    client: Redis = Redis.from_url(
        url.reveal(), socket_timeout=timeout_s, socket_connect_timeout=timeout_s
    )
    return client


def key(organisation: str, *parts: str) -> str:
    """For example ``lt:{org_1}:key_2:requests``."""
    return ":".join(("lt", "{" + organisation + "}", *parts))


class Script:
    """A Lua script of this package, run by its hash and loaded where that is unknown."""

    def __init__(self, redis: Redis, package: str, name: str) -> None:
        self._redis = redis
        self._text = files(package).joinpath(name).read_text("ascii")
        self._sha = ""

    async def __call__(self, keys: Sequence[str], arguments: Sequence[str | int]) -> list[int]:
        try:
            if not self._sha:
                self._sha = str(await self._redis.script_load(self._text))
            reply = await self._redis.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:  # restarted, or another node of a cluster
            reply = await self._redis.eval(self._text, len(keys), *keys, *arguments)
        numbers: list[int] = reply
        return numbers


async def announce(redis: Redis) -> None:
    """Tell every gateway to look. Losing it is harmless: they look by themselves."""
    try:
        await redis.publish(CHANNEL, b"")
    except (RedisError, OSError) as error:
        log.info("change not announced by Redis: %s", error)


async def listen(redis: Redis, heard: Callable[[], None]) -> None:
    """Call ``heard`` at every announcement, for ever, across disconnections."""
    while True:
        try:
            async with redis.pubsub(ignore_subscribe_messages=True) as messages:
                await messages.subscribe(CHANNEL)
                while True:
                    if await messages.get_message(timeout=None) is not None:
                        heard()
        except (RedisError, OSError) as error:
            log.info("announcements of changes interrupted: %s", error)
            await asyncio.sleep(RETRY_S)
