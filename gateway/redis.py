"""Redis: connections with a deadline, key names, scripts by hash, and news of changes.

Redis holds nothing that cannot be lost. Keys carry ``{organisation}``, so that everything one
script touches is in one cluster slot.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import NoScriptError, RedisError

from gateway.config import Secret

log = logging.getLogger(__name__)

CHANNEL = "loratorio:epoch"  # a message says: look at the epoch now
MAX_CONNECTIONS = 16
SILENCE_S = 30.0  # how long to wait for one announcement before waiting again
RETRY_S = 2.0


def connect(url: Secret, *, timeout_s: float) -> Redis:
    """Connects when it is first used; every reply is awaited at most ``timeout_s``.

    A burst waits for a connection instead of opening one for each request.
    """
    pool = BlockingConnectionPool.from_url(
        url.reveal(),
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )
    return Redis.from_pool(pool)


def key(organisation: str, *parts: str) -> str:
    """For example ``lt:{org_1}:key_2:requests``."""
    return ":".join(("lt", "{" + organisation + "}", *parts))


class Commands(Protocol):
    """A client with a pool, or a ``Line``."""

    def execute_command(self, *args: Any) -> Awaitable[Any]: ...


class Script:
    """A Lua script of a package, run by its hash, and sent where the hash is not known."""

    def __init__(self, server: Commands, package: str, name: str) -> None:
        self._server = server
        self._text = files(package).joinpath(name).read_text("ascii")
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self, keys: Sequence[str], arguments: Sequence[str | int | bytes]
    ) -> list[Any]:
        try:
            reply = await self._server.execute_command(
                "EVALSHA", self._sha, len(keys), *keys, *arguments
            )
        except NoScriptError:  # a fresh server
            reply = await self._server.execute_command(
                "EVAL", self._text, len(keys), *keys, *arguments
            )
        found: list[Any] = reply
        return found


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
                    if await messages.get_message(timeout=SILENCE_S) is not None:
                        heard()
        except (RedisError, OSError) as error:
            log.info("announcements of changes interrupted: %s", error)
            await asyncio.sleep(RETRY_S)
