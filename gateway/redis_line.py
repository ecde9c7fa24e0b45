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
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError, ResponseError


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


class _Open(asyncio.Protocol):
    """A connection that was made and greeted by the client's own code, taken over from there: no
    task of ours stands between a caller and the socket."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._lost = False
        self._nothing = object()  # no whole reply; a reply may be False
        self._reader = hiredis.Reader(replyError=_error, notEnoughData=self._nothing)
        assert connection._writer is not None, "it is connected"
        self._transport: asyncio.WriteTransport = connection._writer.transport
        self._transport.set_protocol(self)

    def usable(self, patience_s: float) -> bool:
        if self._lost or self._transport.is_closing():
            return False
        return not self._asked or self._loop.time() - self._asked[0][1] <= patience_s

    async def ask(self, command: tuple[str | int | bytes, ...]) -> Any:
        if self._lost:
            raise Lost("the connection was lost")
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append((answer, self._loop.time()))
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.append(packed)
        return await answer

    async def close(self, why: str) -> None:
        self._end(Lost(why))
        self._transport.abort()
        await self._connection.disconnect(nowait=True)

    def _write(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not self._lost:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not self._nothing:
                if not isinstance(reply, hiredis.PushNotification):  # nobody asked for it
                    self._answer(reply)
        except hiredis.ProtocolError as error:
            self._end(error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or Lost("the connection was closed"))

    def _answer(self, reply: Any) -> None:
        if not self._asked:
            raise hiredis.ProtocolError("a reply to no question")
        answer, _ = self._asked.popleft()
        if answer.done():  # nobody waits any more
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def _end(self, error: Exception) -> None:
        """All that wait learn of it; each gets an error of its own."""
        self._lost = True
        while self._asked:
            answer, _ = self._asked.popleft()
            if not answer.done():
                answer.set_exception(Lost(str(error)))


def _error(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)
