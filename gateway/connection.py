"""One connection of a client, as uvicorn reads it, at less cost in four places.

It tells who asks when its client leaves. ASGI tells that to whoever waits for the next message; a
task that waits for it beside each request costs more than reading the request does.

A piece of a stream may go out without a task that sends it, where nobody would have to wait.

What the parser behind it leaves open is decided here. A head may take so many bytes and so long,
whoever sends it. An offer to speak another protocol, which Java's and .NET's clients make with
their first requests, is passed over: the parser would take the body for that protocol's.

A connection that is given up while its client still sends is closed for writing alone at first, and
what comes is thrown away for some seconds: closed at once, the system would tell the client of a
reset, and it might never read why.

An answer's head goes out with the first piece of its body: each write is a system call, during
which other threads may take the interpreter. It is looked through for control characters once, as
a whole. A piece of a stream takes a short way to the socket.
"""

import asyncio
import re
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, cast

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.errors import GatewayError, HeadTooLarge, InvalidRequest
from gateway.ids import new_id

MOST_HEAD_BYTES = 64 << 10  # before its end has come
HEAD_SECONDS = 60.0
PARTING_SECONDS = 5.0  # for a client to read its last answer, while it sends what nobody reads
OFFER = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
CLIENT = "loratorio.client"  # the extension's name in an ASGI scope


class Pieces(Protocol):
    """An answer as a stream, sent without a task that waits."""

    @property
    def takes(self) -> bool:
        """Its head is sent, and more can go out at once."""

    def push(self, piece: bytes) -> None:
        """While it ``takes``."""


class Client:
    """At the other end of one connection. One at a time asks to be told when it leaves."""

    __slots__ = ("_tell", "exchange", "gone")

    def __init__(self) -> None:
        self.gone = False
        self.exchange: Pieces | None = None  # that is under way, or was the last
        self._tell: Callable[[], None] | None = None

    def watch(self, tell: Callable[[], None]) -> None:
        """It is called once, at once where the client is gone already."""
        if self.gone:
            tell()
        else:
            self._tell = tell

    def forget(self) -> None:
        self._tell = None

    def leave(self) -> None:
        """Called by the connection."""
        tell, self._tell = self._tell, None
        self.gone, self.exchange = True, None
        if tell is not None:
            tell()


class Exchange(RequestResponseCycle):
    """One request and its answer."""

    _head = b""  # of the answer, until there is something to send with it

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.scope["method"] == "HEAD" or self.response_complete:
            await super().send(message)
        elif self.response_started:
            self._send_piece(message.get("body", b""), more=message.get("more_body", False))
        elif message["type"] == "http.response.start":
            self._begin(message)
        else:
            raise RuntimeError("An answer begins with its head.")

    @property
    def takes(self) -> bool:
        return (
            self.response_started
            and not self.response_complete
            and not self.flow.write_paused
            and not self.disconnected
        )

    def push(self, piece: bytes) -> None:
        self._send_piece(piece, more=True)

    def _send_piece(self, body: bytes, *, more: bool) -> None:
        piece = body
        if self.chunked_encoding:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                piece += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("An answer is longer than it said.")
        if self._head:
            piece, self._head = self._head + piece, b""
        if piece:
            self.transport.write(piece)
        if not more:
            self._end()

    def _end(self) -> None:
        if not self.chunked_encoding and self.expected_content_length:
            raise RuntimeError("An answer is shorter than it said.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and not self.more_body:
            self.transport.close()
        self.on_response()

    def _begin(self, message: Any) -> None:
        headers = [*self.default_headers, *message.get("headers", ())]
        chunked, closes, length = message["status"] not in (204, 304), False, 0
        for name, value in headers:
            if name == b"content-length":
                length, chunked = int(value), False
            elif name == b"connection":
                closes = closes or b"close" in value.lower()
            elif name == b"transfer-encoding":
                raise RuntimeError("The server chooses how an answer is transferred.")
        lines = [b"%b: %b\r\n" % header for header in headers]
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        # A value with a line break would be a header of its own, or the end of them.
        broken = head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines)
        if broken or CONTROL.search(head):
            raise RuntimeError("A header holds a control character.")
        self.response_started, self.waiting_for_100_continue = True, False
        self.keep_alive, self.chunked_encoding = self.keep_alive and not closes, chunked
        self.expected_content_length = length
        self._head = b"%b%b\r\n" % (STATUS_LINE[message["status"]], head)


class ClientConnection(HttpToolsProtocol):
    """Belongs to one event loop."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._client = Client()
        self._heading = True  # no body is coming
        self._head_bytes = 0  # of the head that is coming
        self._ended = 0  # heads and bodies
        self._look: asyncio.TimerHandle | None = None
        self._parting: asyncio.TimerHandle | None = None  # nothing is read any more
        self._begun: RequestResponseCycle | None = None  # answered, and the next head had begun

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look = self.loop.call_later(HEAD_SECONDS, self._close_where_it_trickles)

    def data_received(self, data: bytes) -> None:
        if self._parting is not None:
            return
        ended = self._ended
        if self._heading and b"pgrade" in data:
            data = _without_offer(data)
        super().data_received(data)
        if not self._heading or self._ended != ended:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES and self._parting is None:
            self._refuse(HeadTooLarge(f"The headers are larger than {MOST_HEAD_BYTES} bytes."))

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(msg, code="invalid_http"))

    def _refuse(self, error: GatewayError) -> None:
        body = orjson.dumps(error.body())
        head = (
            b"content-type: application/json\r\nx-request-id: %b\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n"
        ) % (new_id("req").encode(), len(body))
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self._part()

    def _part(self) -> None:
        if self._parting is not None or self.transport.is_closing():
            return
        self._parting = self.loop.call_later(PARTING_SECONDS, self.transport.close)
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not through TLS
            self.transport.write_eof()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        last = self.cycle
        if last.response_complete and not last.keep_alive and last.more_body:
            self._part()

    def _close_where_it_trickles(self) -> None:
        """Whoever has connected and sends no head, or begins another and does not end it."""
        cycle = self.cycle
        begun = cycle is not None and cycle.response_complete and not self.timeout_keep_alive_task
        if cycle is None or (begun and self._begun is cycle):
            self.transport.close()
            return
        self._begun = cycle if begun else None
        self._look = self.loop.call_later(HEAD_SECONDS, self._close_where_it_trickles)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CLIENT: self._client}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._heading = False
        self._ended += 1

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._heading = True
        self._ended += 1

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Exchange  # uvicorn makes its own, and has no other place to say so
        self._client.exchange = cast(Exchange, cycle)
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._client.leave()
        for timer in (self._look, self._parting):
            if timer is not None:
                timer.cancel()


def _without_offer(data: bytes) -> bytes:
    """What the head in it says of another protocol gets a name that means nothing."""
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[: end + 2]
    return OFFER.sub(b"\r\nx-offer", head) + data[len(head) :]


def client_of(scope: MutableMapping[str, Any]) -> Client | None:
    """None: another server has the connection."""
    found: Client | None = (scope.get("extensions") or {}).get(CLIENT)
    return found
