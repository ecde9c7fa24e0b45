"""Length-prefixed MessagePack frames over any asyncio stream (unix socket, TCP, TLS).

An address is ``unix:/path/to.sock``, ``tcp:host:port`` or, with TLS, ``tls:host:port``.
"""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from engine.address import AddressInvalid, FileAddress, read_address
from engine.tls import HANDSHAKE_S, ClientTls, ServerTls, TlsFiles

In = TypeVar("In")
Out = TypeVar("Out")
MAX_FRAME = 16 << 20  # bytes; a 128k-token prompt is well under 1 MiB
HEADER_BYTES = 4
READ_BYTES = 256 << 10


class ConnectionLost(Exception):
    """The peer closed, died or sent a frame we cannot accept."""


class Connection(Generic[In, Out]):
    """One ordered, bidirectional stream of typed messages. Belongs to one event loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: Any
    ) -> None:
        self._reader, self._writer = reader, writer
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._arrived = bytearray()  # what was read; the next frame begins at ``_taken``
        self._taken = 0

    def write(self, *messages: Out) -> int:
        """Queue frames without waiting; returns the bytes the peer has yet to take.

        Raises ConnectionLost. A transport may know that before whoever reads from it is told, and
        uvloop's takes offence at being written to then.
        """
        if self._writer.transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._writer.write(b"".join(map(self._frame, messages)))
        return 0 if self._writer.is_closing() else self._writer.transport.get_write_buffer_size()

    def _frame(self, message: Out) -> bytes:
        frame = self._encode(message)
        if len(frame) > MAX_FRAME:
            raise ConnectionLost(f"frame of {len(frame)} bytes exceeds {MAX_FRAME}")
        return len(frame).to_bytes(4, "little") + frame

    async def send(self, message: Out) -> None:
        try:
            self.write(message)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        await self.drain()

    async def drain(self) -> None:
        """Back-pressure: wait while the peer is slow to take what was written."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    async def receive(self) -> In:
        """Frames that arrived together cost one wait, and one look at the socket."""
        try:
            while (message := self.arrived()) is None:
                data = await self._reader.read(READ_BYTES)
                if not data:
                    raise ConnectionLost("the peer closed the connection")
                del self._arrived[: self._taken]
                self._arrived += data
                self._taken = 0
            return message
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    @property
    def has_more(self) -> bool:
        """Something is here behind the last message, whole or not."""
        return len(self._arrived) > self._taken

    def arrived(self) -> In | None:
        """The next message, if all of it is here. Raises ConnectionLost."""
        start = self._taken + HEADER_BYTES
        size = int.from_bytes(self._arrived[self._taken : start], "little")
        if size > MAX_FRAME:
            raise ConnectionLost(f"frame of {size} bytes exceeds {MAX_FRAME}")
        end = start + size
        if end > len(self._arrived) or start > len(self._arrived):
            return None
        try:
            with memoryview(self._arrived) as whole:
                message: In = self._decode(whole[start:end])
        except msgspec.DecodeError as error:
            raise ConnectionLost(str(error)) from error
        self._taken = end
        return message

    def end(self) -> None:
        """Close once the peer has taken what was written; do not wait for that."""
        self._writer.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Drop the connection at once, with whatever the peer has not taken."""
        self._writer.transport.abort()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def dial(
    address: str, tls: ClientTls | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address; ``tls`` is for those that begin with it.

    Raises AddressInvalid or ConnectionLost.
    """
    to = read_address(address)
    try:
        if isinstance(to, FileAddress):
            return await asyncio.open_unix_connection(to.path)
        if to.kind == "tls":
            return await _dial_tls(to.host, to.port, tls or ClientTls(TlsFiles()))
        return await asyncio.open_connection(to.host, to.port)
    except OSError as error:
        raise ConnectionLost(f"{address}: {error}") from error


async def _dial_tls(
    host: str, port: int, tls: ClientTls
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        host,
        port,
        ssl=tls.context,
        server_hostname=tls.server_name or host,
        ssl_handshake_timeout=HANDSHAKE_S,
    )


async def listen(address: str, handler: Handler, tls: ServerTls | None = None) -> asyncio.Server:
    """Accept connections on an address. A stale unix socket file is replaced.

    Raises AddressInvalid, or OSError where that is not possible.
    """
    at = read_address(address)
    if isinstance(at, FileAddress):
        return await _listen_on_file(at.path, handler)
    if at.kind == "tcp":
        return await asyncio.start_server(handler, at.host, at.port)
    if tls is None:
        raise AddressInvalid(address, why="there is no certificate for TLS")
    return await asyncio.start_server(
        handler, at.host, at.port, ssl=tls.context, ssl_handshake_timeout=HANDSHAKE_S
    )


async def _listen_on_file(path: Path, handler: Handler) -> asyncio.Server:
    if await _answers(path):
        raise OSError(errno.EADDRINUSE, "another program listens there", str(path))
    path.unlink(missing_ok=True)  # noqa: ASYNC240  once, before anyone is served
    server = await asyncio.start_unix_server(handler, path)
    path.chmod(0o600)  # noqa: ASYNC240
    return server


async def _answers(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
