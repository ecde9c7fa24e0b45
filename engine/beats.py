"""An engine that says in Redis that it is there, for gateways to find it.

Its address is put into a sorted set with the moment until which it counts; a beat moves the moment
on. An engine that dies, hangs or loses Redis stops beating and is gone after ``TTL_S``. A thread of
its own beats, and asks the loop's pulse first: a process whose loop stands still is no engine.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from engine.errors import ConfigError

KEY = "loratorio:engines"
BEAT_S = 1.0
TTL_S = 5.0
STILL_S = 10.0  # a loop that has not come round for so long is not there
TIMEOUT_S = 2.0
# The moment is of Redis's own clock: engines' need not agree.
BEAT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
"""

log = logging.getLogger(__name__)


class Beats:
    """A context manager: beats inside, and takes its address out at the end."""

    def __init__(
        self,
        url: str,
        address: str,
        *,
        still_s: Callable[[], float],
        leaving: Callable[[], bool],
        ttl_s: float = TTL_S,
    ) -> None:
        """``still_s``: seconds since the loop last came round; ``leaving``: nobody new is to come.

        Raises ConfigError.
        """
        self._client, self._address = _client(url), address
        self._still_s, self._leaving = still_s, leaving
        self._ttl_ms = int(ttl_s * 1000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        reached = True
        while not self._ended.is_set() and not self._leaving():
            reached = self._try(self._beat, reached)
            self._ended.wait(BEAT_S)
        self._try(self._leave, reached)
        self._client.close()

    def _try(self, act: Callable[[], None], reached: bool) -> bool:
        """Whether Redis answered; that it stopped answering is said once."""
        from redis.exceptions import RedisError

        try:
            act()
        except (RedisError, OSError) as error:
            if reached:
                log.warning("gateways may not find this engine: %s", error)
            return False
        return True

    def _beat(self) -> None:
        if (still := self._still_s()) < STILL_S:
            self._client.eval(BEAT, 1, KEY, self._address, self._ttl_ms)
        else:
            log.warning("the loop has stood still for %.0f s: no beat", still)

    def _leave(self) -> None:
        self._client.zrem(KEY, self._address)


def _client(url: str) -> Any:
    try:
        from redis import Redis
    except ImportError as error:
        raise ConfigError("--register needs the package redis") from error
    try:
        return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    except ValueError as error:  # the URL may hold a password: it is not repeated
        raise ConfigError("--register is no Redis URL, as in redis://HOST:6379/0") from error
