"""One connection to Redis that many callers share: what they ask in one turn of the loop goes out
in one write, and replies come in the order of the questions.

A pool gives each caller a connection of its own; beyond its size they wait for one another, and
who comes late may be served first for as long as a burst lasts. Here nobody waits for a
connection, and a call costs a fraction of the CPU.

A caller that stops waiting leaves its place in the order, and the reply to it is dropped. Where a
reply is overdue the connection is given up, with all that wait for it, and the next caller dials.
Belongs to one event loop.
"""

import asyncio
import math
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import RedisError, ResponseError


class Line:
    def __init__(self, redis: Redis, *, patience_s: float) -> None:
        """``redis`` says where and as whom; its pool is not used."""
        self._pool = redis.connection_pool
        self._patience_s = patience_s
        self._dialling = asyncio.Lock()
        self._open: _Open | None = None

    async def execute_command(self, *command: str | int | bytes) -> Any:
        """The reply. Raises ResponseError for an error of the command, ConnectionError."""
        found = self._open
        if found is None or not found.usable(self._patience_s):
            found = await self._dial()
        return await found.ask(command)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close("closed")
            self._open = None

    async def _dial(self) -> "_Open":
        async with self._dialling:
            if self._open is not None:
                if self._open.usable(self._patience_s):
                    return self._open
                await self._open.close("no reply")
                self._open = None
            connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            await connection.connect()  # type: ignore[no-untyped-call]
            self._open = _Open(connection)
            return self._open


class _Open:
    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._more = asyncio.Event()
        self._lost = False
        self._tasks = [self._loop.create_task(self._write()), self._loop.create_task(self._read())]

    def usable(self, patience_s: float) -> bool:
        if self._lost:
            return False
        return not self._asked or self._loop.time() - self._asked[0][1] <= patience_s

    async def ask(self, command: tuple[str | int | bytes, ...]) -> Any:
        if self._lost:
            raise Lost("the connection was lost")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append((answer, self._loop.time()))
        self._unsent.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        self._more.set()
        return await answer

    async def close(self, why: str) -> None:
        for task in self._tasks:
            task.cancel()
        self._end(Lost(why))
        await self._connection.disconnect(nowait=True)

    async def _write(self) -> None:
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                unsent, self._unsent = self._unsent, []
                await self._connection.send_packed_command(unsent, check_health=False)
        except (RedisError, OSError) as error:
            self._end(error)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    reply = await self._connection.read_response(timeout=math.inf)
                except ResponseError as error:  # of this command alone
                    reply = error
                answer = self._answered()
                if answer.done():  # nobody waits any more
                    continue
                if isinstance(reply, Exception):
                    answer.set_exception(reply)
                else:
                    answer.set_result(reply)
        except (RedisError, OSError) as error:
            self._end(error)

    def _answered(self) -> asyncio.Future[Any]:
        return self._asked.popleft()[0]

    def _end(self, error: Exception) -> None:
        """All that wait learn of it; each gets an error of its own."""
        self._lost = True
        while self._asked:
            answer = self._answered()
            if not answer.done():
                answer.set_exception(Lost(str(error)))
