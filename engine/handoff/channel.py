"""Bytes over one connected socket, in the clear or with TLS, straight from and into memory.

Belongs to one event loop. One task may write while another reads. Both raise OSError, of which
TLS's errors are a kind; who waits says for how long.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

RECORDS = 256 << 10  # bytes that are enciphered, or read from the socket, at a time


class Channel(Protocol):
    async def open(self) -> None:
        """Before anything else, once."""

    async def write(self, data: bytes | memoryview) -> None:
        """All of it."""

    async def read_into(self, into: memoryview) -> int:
        """At least a byte; 0: the other side has closed."""

    def close(self) -> None:
        """Whatever is under way; idempotent."""


class PlainChannel:
    """A ``Channel``."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def open(self) -> None:
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def write(self, data: bytes | memoryview) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read_into(self, into: memoryview) -> int:
        return await asyncio.get_running_loop().sock_recv_into(self._socket, into)

    def close(self) -> None:
        self._socket.close()


class TlsChannel:
    """A ``Channel`` over another. Asyncio's own TLS would copy each page twice more.

    Frames say how long they are and what comes last, so a connection that is cut without TLS's
    farewell cannot pass for one that has ended.
    """

    def __init__(
        self,
        below: Channel,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_name: str | None = None,
    ) -> None:
        self._below = below
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=server_name
        )
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        self._writing = asyncio.Lock()  # a reader writes too, when the other side changes keys
        self._cipher = memoryview(bytearray(RECORDS))

    async def open(self) -> None:
        """Raises OSError where the other side does not show what is asked of it."""
        await self._below.open()
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._hear():
                    raise ConnectionResetError("closed during TLS's handshake") from None
            except ssl.SSLError:
                await self._flush()  # says to the other side why
                raise
            else:
                return await self._flush()

    async def write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left[:RECORDS]) :]
            await self._flush()

    async def read_into(self, into: memoryview) -> int:
        while True:
            try:
                return self._read(len(into), into)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._hear():
                    return 0
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def close(self) -> None:
        self._below.close()

    async def _hear(self) -> bool:
        """More came."""
        count = await self._below.read_into(self._cipher)
        self._in.write(self._cipher[:count])
        return count > 0

    async def _flush(self) -> None:
        if not self._out.pending:
            return
        async with self._writing:
            await self._below.write(self._out.read())
