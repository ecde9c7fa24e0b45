"""Writes an answer while it is generated, or gathers it to be sent whole.

Both return before the last bytes: those go out once the request is settled and recorded.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from engine.protocol import Output
from gateway.http import Reply
from gateway.inference.answer import Answer, Written
from gateway.inference.frames import Frames
from gateway.inference.generation import Batch, Generation

Heard = Callable[[int], None]  # called as outputs arrive, with their number
ALIVE_SECONDS = 15.0  # the longest silence: what lies between us and a client gives up on longer
STILL_HERE = b": ping\n\n"  # a comment, which clients skip; an empty event breaks some


class Events:
    """The server-sent events of one reply, opened with the first of them.

    While there is nothing to say, it says that we are still here. A timer looks after that: a task
    for each stream would cost more than many of its tokens.
    """

    def __init__(self, reply: Reply, opening: bytes) -> None:
        self._reply = reply
        self._opening = opening
        self._sending = False
        self._saying: asyncio.Task[None] | None = None  # that we are still here
        self._wrote = time.monotonic()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(ALIVE_SECONDS, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.wait([self._saying])

    async def send(self, frames: bytes) -> None:
        """Waits while the client reads slowly."""
        self._sending = True
        if self._saying is not None:
            await asyncio.wait([self._saying])
        if not self._reply.begun:
            await self._reply.events()
        if self._opening:
            frames, self._opening = self._opening + frames, b""
        if frames:
            await self._reply.write(frames)
            self._wrote = time.monotonic()
        self._sending = False

    @property
    def ready(self) -> bool:
        """Frames can be ``pushed`` now: nothing is being sent, and the client takes more."""
        quiet = self._saying is None or self._saying.done()
        return quiet and not self._sending and not self._opening and self._reply.takes

    def push(self, frames: bytes) -> None:
        """As ``send``, while ``ready``."""
        if frames:
            self._reply.push(frames)
            self._wrote = time.monotonic()

    def _look(self) -> None:
        silence = time.monotonic() - self._wrote
        if silence >= ALIVE_SECONDS and not self._sending:
            self._saying = self._loop.create_task(self._say())
            silence = 0.0
        self._timer = self._loop.call_later(max(ALIVE_SECONDS - silence, 0.01), self._look)

    async def _say(self) -> None:
        if not self._reply.begun:
            await self._reply.events()
        await self._reply.write(STILL_HERE)
        self._wrote = time.monotonic()


class Straight:
    """The short way of a plain answer's tokens, from the engine to the socket: no task wakes for
    each of them."""

    def __init__(
        self,
        generation: Generation,
        answer: Answer,
        frames: Frames,
        *,
        events: Events,
        heard: Heard,
    ) -> None:
        self._is_paid, self._gain, self._text = generation.is_paid, answer.gain, frames.text
        self._events, self._heard = events, heard

    def hear(self, outputs: Sequence[Output]) -> bool:
        """One write, as for a batch. False: they are for ``Generation.batches``."""
        events = self._events
        if not events.ready or not self._is_paid(outputs):
            return False
        self._heard(len(outputs))
        events.push(self._text(self._gain(outputs)))
        return True


async def stream(
    generation: Generation, answer: Answer, frames: Frames, *, reply: Reply, heard: Heard
) -> None:
    """Send all but the closing frames.

    Before the engine's first batch a failure is still an answer of its own, so nothing is sent
    until then, or until the client has waited too long to be told nothing.
    """
    chunk = frames.chunk
    async with (
        aclosing(generation.batches()) as batches,
        Events(reply, frames.opening()) as events,
    ):
        if answer.plain:
            generation.ear = Straight(generation, answer, frames, events=events, heard=heard).hear
        async for position, outputs in batches:
            heard(len(outputs))
            # Tokens that were ready together are one write.
            await events.send(
                b"".join([chunk(i, delta) for i, delta in answer.feed(position, outputs)])
            )
            if answer.complete:
                return


async def gather(
    batches: AsyncGenerator[Batch, None], answer: Answer, *, heard: Heard
) -> list[Written]:
    """All choices, complete."""
    written = [Written() for _ in answer.choices]
    async with aclosing(batches) as source:
        async for position, outputs in source:
            heard(len(outputs))
            for index, delta in answer.feed(position, outputs):
                written[index].add(delta)
            if answer.complete:
                break
    return written
