"""``Idempotency-Key`` behind the hot routes: what is created or changed by POST is so once.

An upload may be gigabytes, so its body goes on as it comes and is only hashed on its way; a form's
boundary, which clients draw anew each time, is left out. The hash is kept with the answer: sent
again, a body is read, compared and thrown away. What an answer must not be kept of, for it holds a
secret, it says itself by ``cache-control: no-store``; then only that it was given is known.

Names are an API key's own: no key reads what one with more rights was answered.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from gateway.errors import GatewayError, IdempotencyKeyReused
from gateway.http import BODY_SECONDS, Asgi, Message, Receive, Request, Scope, Send
from gateway.idempotency.answers import Answers, Claim, Kept, claim_of
from gateway.identity.principal import Principal
from gateway.inference.once import HEADER, REPLAYED, answer_gone, key_of

UNDER = "/v1/"
BOUNDARY = re.compile(rb'boundary="?([^";]{1,256})', re.IGNORECASE)
MOST_UNREAD = 1 << 20  # of a body that a route had no use for

Identify = Callable[[Request], Awaitable[Principal]]


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What is kept."""

    status: int
    digest: str  # of the request's body
    size: int
    body: bytes | None  # None: a secret


class Fingerprint:
    """The hash of a body, however it was cut."""

    def __init__(self, kind: bytes) -> None:
        found = BOUNDARY.search(kind)
        self._boundary = found[1] if found else b""
        self._hash, self._held = hashlib.sha256(), b""
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if not self._boundary:
            self._hash.update(piece)
            return
        first, *rest = (self._held + piece).split(self._boundary)
        for part in (first, *rest)[:-1]:
            self._hash.update(part)
        last = rest[-1] if rest else first
        hold = min(len(self._boundary) - 1, len(last))
        self._hash.update(last[: len(last) - hold])
        self._held = last[len(last) - hold :]

    @property
    def digest(self) -> str:
        whole = self._hash.copy()
        whole.update(self._held)
        return whole.hexdigest()


class Body:
    """A request's, hashed while somebody reads it."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self._receive = receive
        self.seen = Fingerprint(request.header(b"content-type"))
        self.whole = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.seen.add(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        return message

    async def finish(self, limit: int) -> None:
        """Read what is left; ``whole`` says whether that was all, and within ``limit`` bytes."""
        while not self.whole and self.seen.size <= limit:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self.receive()
            if message["type"] != "http.request":
                return
        self.whole = self.whole and self.seen.size <= limit


@dataclass(slots=True)
class Recording:
    """An answer on its way out, kept before its client can have all of it."""

    claim: Claim
    answers: Answers
    body: Body
    send: Send
    status: int = 0
    kind: str = ""
    secret: bool = False
    parts: list[bytes] = field(default_factory=list)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self.status = message["status"]
            self.kind = headers.get(b"content-type", b"").decode("latin-1")
            self.secret = b"no-store" in headers.get(b"cache-control", b"")
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
            if not message.get("more_body", False) and 200 <= self.status < 300:
                await self._keep()
        await self.send(message)

    async def _keep(self) -> None:
        await self.body.finish(self.body.seen.size + MOST_UNREAD)
        if not self.body.whole:
            return
        told = None if self.secret else b"".join(self.parts)
        seen = self.body.seen
        facts = Answered(self.status, seen.digest, seen.size, told)
        await self.answers.keep(self.claim, Kept.of(self.kind, msgspec.msgpack.encode(facts)))


class Creations:
    """Before the application that has these routes. Belongs to one event loop."""

    def __init__(self, behind: Asgi, answers: Answers, identify: Identify) -> None:
        self._behind, self._answers, self._identify = behind, answers, identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _keyed(scope, receive)
        try:
            who = await self._identify(request) if request else None
        except GatewayError:
            who = None  # the route itself says what is wrong
        if request is None or who is None:
            await self._behind(scope, receive, send)
            return
        body = Body(request, receive)
        try:
            claim = _claim(who, request, scope)
            kept = await self._answers.claim(claim)
            if kept is None:
                await self._first(claim, body, scope, send)
            else:
                await _replay(kept, body, send)
        except GatewayError as error:
            headers = error.headers()
            if not body.whole:
                headers["connection"] = "close"  # the rest of the body is not read
            await _send(send, error.status, orjson.dumps(error.body()), headers)

    async def _first(self, claim: Claim, body: Body, scope: Scope, send: Send) -> None:
        recording = Recording(claim, self._answers, body, send)
        try:
            await self._behind(scope, body.receive, recording)
        finally:
            await self._answers.release(claim)


def _keyed(scope: Scope, receive: Receive) -> Request | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    if not scope["path"].startswith(UNDER):
        return None
    request = Request(scope, receive)
    return request if request.headers(HEADER) else None


def _claim(who: Principal, request: Request, scope: Scope) -> Claim:
    """Raises InvalidRequest."""
    name = b"%b\n%b" % (who.key.encode(), key_of(request))
    asked = request.path.encode() + b"?" + scope.get("query_string", b"")
    return claim_of(who.organisation, who.project or who.key, name, asked)


async def _replay(kept: Kept, body: Body, send: Send) -> None:
    """Raises IdempotencyKeyReused, IdempotencyAnswerGone."""
    if kept.packed is None:
        raise answer_gone("was too large to be kept")
    known = msgspec.msgpack.decode(kept.body, type=Answered)
    await body.finish(known.size)
    if not body.whole or body.seen.digest != known.digest:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used with another body.", param="Idempotency-Key"
        )
    if known.body is None:
        raise answer_gone("holds a secret, which is shown once")
    await _send(send, known.status, known.body, {"content-type": kept.kind, REPLAYED: "true"})


async def _send(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    every: dict[str, Any] = {"content-type": "application/json", **headers}
    every["content-length"] = str(len(body))
    raw = [(name.encode(), str(value).encode("latin-1")) for name, value in every.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": raw})
    await send({"type": "http.response.body", "body": body})
