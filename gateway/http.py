"""Raw ASGI plumbing for the hot routes: one request in, one answer out, nothing hidden between.

A ``Request`` reads headers and a capped body and notices when its client goes away. A ``Reply``
sends exactly one answer: a whole JSON body, or server-sent events. Both belong to one event loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol

import orjson

from gateway.connection import Client, client_of
from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    UnsupportedMediaType,
)
from gateway.identity.principal import Principal
from gateway.patience import Patience

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fact = str | int | float | None
BODY_SECONDS = 60.0  # the longest wait for one more piece of a body
WHOLE_BODY_SECONDS = 300.0  # and for all of it: a client that trickles holds memory

JSON = b"application/json"


class Asgi(Protocol):
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]: ...


def body_patience() -> Patience:
    """For the requests of one loop: how long each piece of a body is waited for."""
    return Patience(BODY_SECONDS)


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class Request:
    """What a client sent."""

    __slots__ = ("_headers", "_patience", "_receive", "client", "method", "path", "peer")

    def __init__(self, scope: Scope, receive: Receive, patience: Patience | None = None) -> None:
        """``patience``: as ``body_patience``, shared by the requests of a loop."""
        self.client = client_of(scope)  # None: another server has the connection
        self._patience = patience
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.peer: str = scope["client"][0] if scope.get("client") else ""  # address, or unknown
        self._headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name, []).append(value)
        self._receive = receive

    def headers(self, name: bytes) -> list[bytes]:
        """Every value of a header, whose name is given in lower case."""
        return self._headers.get(name, [])

    def header(self, name: bytes) -> bytes:
        values = self._headers.get(name)
        return values[0].strip() if values else b""

    def require_method(self, *allowed: str) -> None:
        """Raises MethodNotAllowed."""
        if self.method not in allowed:
            raise MethodNotAllowed(
                f"{self.method} is not allowed here.", headers={"allow": ", ".join(allowed)}
            )

    async def json_body(self, limit: int) -> bytes:
        """The whole body. Raises UnsupportedMediaType, BodyTooLarge, InvalidRequest, ClientGone."""
        self._require_plain_json()
        return await self.body(limit)

    async def body(self, limit: int) -> bytes:
        """Whatever it is. Raises BodyTooLarge, InvalidRequest where it stalls, ClientGone."""
        length = self.header(b"content-length")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size, more = 0, True
        until = time.monotonic() + WHOLE_BODY_SECONDS
        while more:
            message = await self._next_piece(until)
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
            more = message.get("more_body", False)
        return b"".join(pieces)

    async def _next_piece(self, until: float) -> Message:
        """``until``, by the monotonic clock, at the latest."""
        seconds = until - time.monotonic()
        try:
            if self._patience is not None and seconds > BODY_SECONDS:
                with self._patience.wait():
                    message = await self._receive()
            else:
                async with asyncio.timeout(min(BODY_SECONDS, seconds)):
                    message = await self._receive()
        except TimeoutError:
            raise InvalidRequest(
                f"The body did not arrive: {BODY_SECONDS:g} seconds may pass without a part of it,"
                f" and {WHOLE_BODY_SECONDS:g} until all of it is there.",
                code="timeout",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    def _require_plain_json(self) -> None:
        kind, *parameters = self.header(b"content-type").lower().split(b";")
        if kind == JSON and not parameters and not self.headers(b"content-encoding"):
            return
        charsets = {p.strip() for p in parameters if p.strip().startswith(b"charset=")}
        if kind.strip() not in (b"", JSON) or charsets - {b"charset=utf-8", b'charset="utf-8"'}:
            raise UnsupportedMediaType("Send the body as application/json in UTF-8.")
        if self.header(b"content-encoding").lower() not in (b"", b"identity"):
            raise UnsupportedMediaType("Send the body without a content encoding.")

    def until_gone(self) -> "UntilGone":
        """A block that ends with ClientGone as soon as the client leaves. Read the body first."""
        return UntilGone(self._receive, self.client)


class UntilGone:
    """Whatever its block waits for is interrupted; costs nothing per chunk sent."""

    __slots__ = ("_cancelling", "_client", "_gone", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive, client: Client | None) -> None:
        self._receive, self._client = receive, client
        self._watcher: asyncio.Task[None] | None = None  # where the server does not tell
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self._client is not None:
            self._client.watch(self._interrupt)
        else:
            self._watcher = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt()

    def _interrupt(self) -> None:
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.forget()
        elif self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # they would hold one another
        if not self._gone:
            return
        ours = self._task.uncancel() <= self._cancelling
        if ours and kind is asyncio.CancelledError:
            raise ClientGone from None


class Spans(Protocol):
    """Of a request that is traced."""

    @property
    def id(self) -> str: ...

    def infer(self, model: str, max_tokens: int) -> str:
        """It is admitted. Returns the ``traceparent`` for its engine."""
        ...

    def end(self, status: int, facts: dict[str, Fact]) -> None: ...


class Tape(Protocol):
    """Hears the body of an answer."""

    def add(self, part: bytes) -> None: ...

    async def end(self, part: bytes) -> None:
        """Returns before the last part is sent."""


class Reply:
    """The one answer to a request. ``headers`` set before it begins go with it, also on errors."""

    __slots__ = (
        "_client", "_send", "_started", "admitted", "asked", "begun", "broken", "caller", "facts",
        "headers", "kind", "request_id", "status", "tape", "trace",
    )  # fmt: skip

    def __init__(self, send: Send, request_id: str, client: Client | None = None) -> None:
        """``client``: where the server knows it; it can be sent to without a task that waits."""
        self._send, self._client = send, client
        self._started = time.monotonic()
        self.request_id = request_id
        self.headers: dict[str, str] = {"x-request-id": request_id}
        self.facts: dict[str, Fact] = {}  # for the log line of this request
        self.caller: Principal | None = None  # once it is known
        self.asked = ""  # for which model, once it is known
        self.admitted = False  # from then on the ledger has it
        self.status = 0  # of the answer, once begun
        self.begun = False
        self.broken = False  # a failure of ours came after the status had gone out
        self.kind = ""  # content type, once begun
        self.tape: Tape | None = None
        self.trace: Spans | None = None  # where requests are traced

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    async def json(self, body: bytes, status: int = HTTPStatus.OK) -> None:
        await self._begin(status, {"content-type": "application/json"}, length=len(body))
        await self.end(body)

    async def error(self, error: GatewayError) -> None:
        self.headers.update(error.headers())
        if isinstance(error, BodyTooLarge):
            self.headers["connection"] = "close"  # the rest of the body is not read
        await self.json(orjson.dumps(error.body()), error.status)

    async def whole(self, body: bytes, headers: Mapping[str, str]) -> None:
        await self._begin(HTTPStatus.OK, headers, length=len(body))
        await self.end(body)

    async def events(self) -> None:
        """Begin server-sent events; ``write`` follows."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._begin(HTTPStatus.OK, headers, length=None)

    async def write(self, frames: bytes) -> None:  # waits while the client reads slowly
        if self.tape is not None:
            self.tape.add(frames)
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    @property
    def takes(self) -> bool:
        """What is written now goes out without waiting: ``push`` it."""
        client = self._client
        return client is not None and (known := client.exchange) is not None and known.takes

    def push(self, frames: bytes) -> None:
        """As ``write``, while it ``takes``."""
        assert self._client is not None, "ask first"
        known = self._client.exchange
        assert known is not None, "ask first"
        if self.tape is not None:
            self.tape.add(frames)
        known.push(frames)

    async def end(self, frames: bytes) -> None:
        if self.tape is not None:
            await self.tape.end(frames)
        await self._send({"type": "http.response.body", "body": frames})

    async def _begin(self, status: int, headers: Mapping[str, str], *, length: int | None) -> None:
        assert not self.begun, "one request has one answer"
        self.begun, self.status, self.kind = True, status, headers["content-type"]
        elapsed = str(round(self.elapsed_s * 1000))
        merged = self.headers
        merged.update(headers)
        merged["openai-processing-ms"] = elapsed
        if length is not None:
            merged["content-length"] = str(length)
        raw = [(name.encode(), value.encode("latin-1")) for name, value in merged.items()]
        await self._send({"type": "http.response.start", "status": int(status), "headers": raw})


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.")


def listed(names: tuple[str, ...]) -> str:
    """Names that a client chose, made safe for a header."""
    safe = ("".join(c if c.isascii() and c.isprintable() else "?" for c in n) for n in names[:32])
    return ", ".join(name[:64].replace(",", "?") for name in safe)
