"""One prompt's pages on their way to the engine that takes them. Belongs to the wire's loop."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from engine.handoff.copies import over
from engine.handoff.frames import (
    NONCE_BYTES,
    VERSION,
    AnyFrame,
    Begin,
    Challenge,
    Done,
    Drawn,
    Failed,
    Offer,
    Read,
    proof,
)
from engine.handoff.news import Broken, Ended, News, Wanted, WasRead
from engine.handoff.sockets import HandoffTls, dial
from engine.handoff.stream import FrameStream, HandoffFailed
from engine.protocol import Ticket


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame, perhaps with the page in a slot behind it."""

    frame: AnyFrame
    slot: int | None = None
    ended: Ended = lambda: True  # the copy into the slot


class Outgoing:
    """``run`` it once, in a task. It never ends without its slots being free again."""

    def __init__(
        self,
        ticket: Ticket,
        *,
        key: bytes,
        cached: int,
        layout: str,
        pool: bytes,
        free: deque[int],
        view: Callable[[int], memoryview],
        timeout_s: float,
        tell: Callable[[News], None],
        tls: HandoffTls | None,
    ) -> None:
        self._tls = tls
        self.name, self._ticket = ticket.name, ticket
        self._key, self._cached, self._layout, self._pool = key, cached, layout, pool
        self._free, self._view, self._timeout_s, self._tell = free, view, timeout_s, tell
        self._queue: asyncio.Queue[Sent | None] = asyncio.Queue()  # its slots bound it
        self._over = False
        self._reason = ""

    def put(self, sent: Sent) -> None:
        if self._over:
            self._discard(sent)
        else:
            self._queue.put_nowait(sent)

    def end(self, reason: str) -> None:
        """Give up, once what was put before has left."""
        self._reason = reason
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Tells the loop what becomes of it."""
        stream: FrameStream | None = None
        try:
            stream = await dial(self._ticket.to, self._tls, timeout_s=self._timeout_s)
            await self._greet(stream)
            await self._carry(stream)
        except HandoffFailed as failure:
            self._tell(Broken(self.name, str(failure)))
        finally:
            self._over = True
            while not self._queue.empty():
                if sent := self._queue.get_nowait():
                    self._discard(sent)
            if stream is not None:
                stream.close()

    async def _greet(self, stream: FrameStream) -> None:
        """Until the other engine has room for the pages, or we give up."""
        challenge = await stream.expect(Challenge)
        if challenge.version != VERSION:
            raise HandoffFailed(f"it speaks version {challenge.version}, we {VERSION}")
        secret, nonce = self._ticket.secret, secrets.token_bytes(NONCE_BYTES)
        ours = proof(secret, "giver", self.name, challenge.nonce, nonce)
        await stream.send(
            Offer(self.name, nonce, ours, self._layout, self._key, self._cached, self._pool)
        )
        begin = await self._unless_ended(stream.expect(Begin, patient=True))
        theirs = proof(secret, "taker", self.name, nonce, challenge.nonce)
        if not compare_digest(begin.proof, theirs):
            raise HandoffFailed("whoever listens there does not know the ticket's secret")
        self._tell(Wanted(self.name, begin.first, begin.direct))

    async def _unless_ended(self, reply: Coroutine[Any, Any, Begin]) -> Begin:
        waiting = asyncio.ensure_future(reply)
        ending = asyncio.ensure_future(self._queue.get())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():  # nothing else can be queued before anything is wanted
                raise HandoffFailed(self._reason)
            return waiting.result()
        finally:
            waiting.cancel()
            ending.cancel()
            await asyncio.gather(waiting, ending, return_exceptions=True)

    async def _carry(self, stream: FrameStream) -> None:
        """What is put, until the last of it was taken; and what is said meanwhile."""
        hearing = asyncio.ensure_future(self._hear(stream))
        sending = asyncio.ensure_future(self._send(stream))
        try:
            await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                async with asyncio.timeout(self._timeout_s):
                    await hearing
            else:
                hearing.result()
                raise HandoffFailed("the other engine was done before us")
        except TimeoutError as error:
            raise HandoffFailed("the other engine does not say that it is done") from error
        finally:
            hearing.cancel()
            sending.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)

    async def _hear(self, stream: FrameStream) -> None:
        while True:
            match await stream.receive(patient=True):
                case Read(index):
                    self._tell(WasRead(self.name, index))
                case Done():
                    return
                case frame:
                    raise HandoffFailed(f"{type(frame).__name__} came unasked")

    async def _send(self, stream: FrameStream) -> None:
        while True:
            sent = await self._queue.get()
            if sent is None:
                await stream.send(Failed(self._reason))
                raise HandoffFailed(self._reason)
            try:
                await over(sent.ended)
                page = None if sent.slot is None else self._view(sent.slot)
                await stream.send(sent.frame, page)
            finally:
                self._discard(sent)
            if isinstance(sent.frame, Drawn):
                return

    def _discard(self, sent: Sent) -> None:
        """A copy into the slot may be under way still: it comes before the slot's next."""
        if sent.slot is not None:
            self._free.append(sent.slot)
