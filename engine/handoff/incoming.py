"""Pages that other engines bring. Belongs to the wire's loop.

Whoever connects has to know the secret of a ticket that a gateway told us of; nobody else's bytes
reach a slot.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from engine.handoff.frames import (
    NONCE_BYTES,
    VERSION,
    Begin,
    Challenge,
    Done,
    Drawn,
    Failed,
    Kept,
    Offer,
    Page,
    Read,
    proof,
)
from engine.handoff.news import Arrived, Came, Held, Lost, News, Offered, PageTransfer, Shown
from engine.handoff.stream import FrameStream, HandoffFailed
from engine.protocol import Ticket

EARLY = 1024  # tickets that are offered before a gateway told us of them


@dataclass(slots=True)
class Expected:
    """A ticket we were told of, or that was offered before."""

    told: asyncio.Future[tuple[Ticket, bytes]]
    begin: asyncio.Future[tuple[int, bool]]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stream: FrameStream | None = None  # that offered it


class Incoming:
    def __init__(
        self,
        transfer: PageTransfer,
        *,
        layout: str,
        slots: int,
        timeout_s: float,
        tell: Callable[[News], None],
    ) -> None:
        self._transfer, self._layout = transfer, layout
        self._timeout_s, self._tell = timeout_s, tell
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._slots.put_nowait(slot)
        self._expected: dict[str, Expected] = {}

    def expect(self, ticket: Ticket, key: bytes) -> None:
        expected = self._expected.get(ticket.name) or self._add(ticket.name)
        if not expected.told.done():
            expected.told.set_result((ticket, key))

    def begin(self, ticket: str, first: int, direct: bool) -> None:
        expected = self._expected.get(ticket)
        if expected and not expected.begin.done():
            expected.begin.set_result((first, direct))

    def forget(self, ticket: str) -> None:
        if expected := self._expected.pop(ticket, None):
            expected.over.set()

    def free(self, slot: int) -> None:
        self._slots.put_nowait(slot)

    async def was_read(self, ticket: str, index: int) -> None:
        expected = self._expected.get(ticket)
        if expected and expected.stream:
            with contextlib.suppress(HandoffFailed):  # whoever receives from it hears of that
                await expected.stream.send(Read(index))

    def _add(self, name: str) -> Expected:
        loop = asyncio.get_running_loop()
        expected = self._expected[name] = Expected(loop.create_future(), loop.create_future())
        return expected

    async def serve(self, stream: FrameStream) -> None:
        """One connection of another engine. Raises HandoffFailed."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        await stream.send(Challenge(VERSION, nonce))
        offer = await stream.expect(Offer)
        expected = await self._known(offer, nonce)
        ticket, name = expected.told.result()[0], offer.ticket
        expected.stream = stream
        serving = asyncio.ensure_future(self._serve(stream, expected, ticket, offer, nonce))
        ending = asyncio.ensure_future(expected.over.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await stream.send(Failed("its request is over, or computed here"))
                return
            serving.result()
        except HandoffFailed as failure:
            self._tell(Lost(name, str(failure)))
            raise
        finally:
            serving.cancel()
            ending.cancel()
            await asyncio.gather(serving, ending, return_exceptions=True)
            if self._expected.get(name) is expected:
                del self._expected[name]

    async def _known(self, offer: Offer, nonce: bytes) -> Expected:
        """The gateway may tell us after the other engine does."""
        if offer.ticket not in self._expected and len(self._expected) >= EARLY:
            raise HandoffFailed("too many tickets that nobody told us of")
        expected = self._expected.get(offer.ticket) or self._add(offer.ticket)
        try:
            async with asyncio.timeout(self._timeout_s):
                ticket, key = await asyncio.shield(expected.told)
        except TimeoutError as error:
            if self._expected.get(offer.ticket) is expected and not expected.told.done():
                del self._expected[offer.ticket]
            raise HandoffFailed("nobody told us of this ticket") from error
        due = proof(ticket.secret, "giver", offer.ticket, nonce, offer.nonce)
        if not compare_digest(due, offer.proof) or expected.stream is not None:
            raise HandoffFailed("whoever offers this ticket does not know its secret")
        problem = ""
        if offer.layout != self._layout:
            problem = f"its pages are {offer.layout}, ours {self._layout}"
        elif offer.key != key:
            problem = "it computes another prompt, or with another adapter"
        if problem:
            self._tell(Lost(offer.ticket, problem))
            raise HandoffFailed(problem)
        return expected

    async def _serve(
        self, stream: FrameStream, expected: Expected, ticket: Ticket, offer: Offer, nonce: bytes
    ) -> None:
        name = ticket.name
        self._tell(Offered(name, offer.cached, offer.pool))
        next_frame = asyncio.ensure_future(stream.receive(patient=True))
        try:
            either: set[asyncio.Future[Any]] = {next_frame, expected.begin}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if next_frame.done():
                next_frame.result()
                raise HandoffFailed("it began before it was asked to")
            first, direct = expected.begin.result()
            ours = proof(ticket.secret, "taker", name, offer.nonce, nonce)
            await stream.send(Begin(ours, first, direct))
            while True:
                frame = await next_frame
                if isinstance(frame, Drawn):
                    self._tell(Came(name, frame.token, frame.logprobs))
                    await stream.send(Done())
                    return
                await self._take(stream, name, frame)
                next_frame = asyncio.ensure_future(stream.receive(patient=True))
        finally:
            next_frame.cancel()
            await asyncio.gather(next_frame, return_exceptions=True)

    async def _take(self, stream: FrameStream, name: str, frame: object) -> None:
        match frame:
            case Page(index, None):
                slot = await self._slots.get()
                try:
                    await stream.into(self._transfer.view(slot))
                except BaseException:
                    self._slots.put_nowait(slot)
                    raise
                self._tell(Arrived(name, index, slot))
            case Page(index, page):
                assert page is not None, "the case before had none"
                self._tell(Shown(name, index, page))
            case Kept(index):
                self._tell(Held(name, index))
            case _:
                raise HandoffFailed(f"{type(frame).__name__} came unasked")
