"""Length-prefixed MessagePack frames over any asyncio stream (unix socket, TCP, TLS).

An address is ``unix:/path/to.sock``, ``tcp:host:port`` or, with TLS, ``tls:host:port``.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from engine.address import AddressInvalid, FileAddress, read_address
from engine.tls import HANDSHAKE_S, ClientTls, ServerTls, TlsFiles

In = TypeVar("In")
Out = TypeVar("Out")
MAX_FRAME = 16 << 20  # bytes; a 128k-token prompt is well under 1 MiB
HEADER_BYTES = 4
MOST_UNREAD = 128 << 10  # bytes that arrive ahead of whoever receives them
CLOSED = "the peer closed the connection"


class ConnectionLost(Exception):
    """The peer closed, died or sent a frame we cannot accept."""


class Connection(asyncio.Protocol, Generic[In, Out]):
    """One ordered, bidirectional stream of typed messages. Belongs to one event loop.

    Messages are ``received`` one by one, by one who may be slower than they come; or they are
    ``heard`` by a function, those together that come together, which costs no task and no turn of
    the loop.
    """

    def __init__(self, incoming: Any, met: "Met[In, Out] | None" = None) -> None:
        """``incoming``: the type of what comes; ``met``: runs as a task once it is connected."""
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._met = met
        self._meeting: asyncio.Task[None] | None = None
        self._arrived = bytearray()  # what was read; the next frame begins at ``_taken``
        self._taken = 0
        self._held = False  # too much has arrived that nobody took
        self._news: asyncio.Future[None] | None = None  # somebody waits for more
        self._heard: Callable[[Sequence[In]], None] | None = None
        self._told: Callable[[str], None] | None = None
        self._ended = ""  # why nothing more arrives
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        if self._met is not None:
            self._meeting = asyncio.get_running_loop().create_task(self._met(self))

    def write(self, *messages: Out) -> int:
        """Queue frames without waiting; returns the bytes the peer has yet to take.

        Raises ConnectionLost. A transport may know that before whoever reads from it is told, and
        uvloop's takes offence at being written to then.
        """
        transport = self.transport
        if transport.is_closing():
            raise ConnectionLost("the connection is closed")
        transport.write(b"".join(map(self._frame, messages)))
        return 0 if transport.is_closing() else transport.get_write_buffer_size()

    def _frame(self, message: Out) -> bytes:
        frame = self._encode(message)
        if len(frame) > MAX_FRAME:
            raise ConnectionLost(f"frame of {len(frame)} bytes exceeds {MAX_FRAME}")
        return len(frame).to_bytes(4, "little") + frame

    async def send(self, message: Out) -> None:
        """Raises ConnectionLost."""
        try:
            self.write(message)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        await self.drain()

    async def drain(self) -> None:
        """Back-pressure: wait while the peer is slow to take what was written.

        Raises ConnectionLost.
        """
        if not self._writable.is_set():
            await self._writable.wait()
        if self._ended:
            raise ConnectionLost(self._ended)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def receive(self) -> In:
        """Frames that arrived together cost one wait. Raises ConnectionLost."""
        while (message := self.arrived()) is None:
            if self._ended:
                raise ConnectionLost(self._ended)
            if self._held:
                self._held = False
                self.transport.resume_reading()
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return message

    def hear(self, heard: Callable[[Sequence[In]], None], lost: Callable[[str], None]) -> None:
        """From here on messages are given to ``heard`` as they come, all that are here at once;
        and ``lost`` is told, once, why no more will come."""
        self._heard, self._told = heard, lost
        self._hear(heard)
        if self._ended:
            lost(self._ended)
        elif self._held:
            self._held = False
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._taken:
            del self._arrived[: self._taken]
            self._taken = 0
        self._arrived += data
        if self._heard is not None:
            self._hear(self._heard)
        elif self._news is not None:
            self._wake()
        elif len(self._arrived) > MOST_UNREAD and not self._held:
            self._held = True
            self.transport.pause_reading()

    def _hear(self, heard: Callable[[Sequence[In]], None]) -> None:
        messages: list[In] = []
        why = ""
        try:
            while (message := self.arrived()) is not None:
                messages.append(message)
        except ConnectionLost as error:
            why = str(error)
        if messages:
            heard(messages)
        if why:
            self._end(why)
            self.transport.abort()

    def eof_received(self) -> None:
        self._end(CLOSED)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error or CLOSED))
        self._lost.set()

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self._writable.set()
        self._wake()
        if self._told is not None:
            self._told(why)

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

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
        self.transport.close()

    async def close(self) -> None:
        self.transport.close()
        await self._lost.wait()

    def abort(self) -> None:
        """Drop the connection at once, with whatever the peer has not taken."""
        self.transport.abort()


Met = Callable[[Connection[In, Out]], Coroutine[Any, Any, None]]


async def dial(address: str, incoming: Any, tls: ClientTls | None = None) -> Connection[Any, Any]:
    """Connect to an address; ``tls`` is for those that begin with it.

    Raises AddressInvalid or ConnectionLost.
    """
    loop, to = asyncio.get_running_loop(), read_address(address)

    def connection() -> Connection[Any, Any]:
        return Connection(incoming)

    try:
        if isinstance(to, FileAddress):
            _, made = await loop.create_unix_connection(connection, str(to.path))
        elif to.kind == "tls":
            _, made = await _dial_tls(connection, to.host, to.port, tls or ClientTls(TlsFiles()))
        else:
            _, made = await loop.create_connection(connection, to.host, to.port)
    except OSError as error:
        raise ConnectionLost(f"{address}: {error}") from error
    return made


async def _dial_tls(
    connection: Callable[[], Connection[Any, Any]], host: str, port: int, tls: ClientTls
) -> tuple[asyncio.Transport, Connection[Any, Any]]:
    return await asyncio.get_running_loop().create_connection(
        connection,
        host,
        port,
        ssl=tls.context,
        server_hostname=tls.server_name or host,
        ssl_handshake_timeout=HANDSHAKE_S,
    )


async def listen(
    address: str, incoming: Any, met: Met[Any, Any], tls: ServerTls | None = None
) -> asyncio.Server:
    """Accept connections on an address, each ``met`` by a task. A stale unix socket file is
    replaced.

    Raises AddressInvalid, or OSError where that is not possible.
    """
    loop, at = asyncio.get_running_loop(), read_address(address)

    def connection() -> Connection[Any, Any]:
        return Connection(incoming, met)

    if isinstance(at, FileAddress):
        return await _listen_on_file(at.path, connection)
    if at.kind == "tcp":
        return await loop.create_server(connection, at.host, at.port)
    if tls is None:
        raise AddressInvalid(address, why="there is no certificate for TLS")
    return await loop.create_server(
        connection, at.host, at.port, ssl=tls.context, ssl_handshake_timeout=HANDSHAKE_S
    )


async def _listen_on_file(
    path: Path, connection: Callable[[], Connection[Any, Any]]
) -> asyncio.Server:
    if await _answers(path):
        raise OSError(errno.EADDRINUSE, "another program listens there", str(path))
    path.unlink(missing_ok=True)  # noqa: ASYNC240  once, before anyone is served
    server = await asyncio.get_running_loop().create_unix_server(connection, path)
    path.chmod(0o600)  # noqa: ASYNC240
    return server


async def _answers(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
