"""Writes an answer while it is generated, or gathers it to be sent whole.

Both return before the last bytes: those go out once the request is settled and recorded.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from gateway.http import Reply
from gateway.inference.answer import Answer, Written
from gateway.inference.frames import Frames
from gateway.inference.generation import Batch

Heard = Callable[[], None]  # called as each batch of tokens arrives
ALIVE_SECONDS = 15.0  # the longest silence: what lies between us and a client gives up on longer
STILL_HERE = b": ping\n\n"  # a comment, which clients skip; an empty event breaks some


class Events:
    """The server-sent events of one reply, opened with the first of them."""

    def __init__(self, reply: Reply, opening: bytes) -> None:
        self._reply = reply
        self._opening = opening
        self._turn = asyncio.Lock()  # one writer at a time
        self._wrote = time.monotonic()

    async def send(self, frames: bytes) -> None:
        """Waits while the client reads slowly."""
        async with self._turn:
            await self._begin()
            frames, self._opening = self._opening + frames, b""
            if frames:
                await self._reply.write(frames)
                self._wrote = time.monotonic()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """While there is nothing to say, say that we are still here."""
        task = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._wrote + ALIVE_SECONDS - time.monotonic())
            async with self._turn:
                if time.monotonic() - self._wrote < ALIVE_SECONDS:
                    continue
                await self._begin()
                await self._reply.write(STILL_HERE)
                self._wrote = time.monotonic()

    async def _begin(self) -> None:
        if not self._reply.begun:
            await self._reply.events()


async def stream(
    batches: AsyncGenerator[Batch, None],
    answer: Answer,
    frames: Frames,
    *,
    reply: Reply,
    heard: Heard,
) -> None:
    """Send all but the closing frames.

    Before the engine's first batch a failure is still an answer of its own, so nothing is sent
    until then, or until the client has waited too long to be told nothing.
    """
    events = Events(reply, frames.opening())
    async with aclosing(batches) as source, events.kept_alive():
        async for position, outputs in source:
            heard()
            gained = answer.feed(position, outputs)
            # Tokens that were ready together are one write.
            await events.send(b"".join(frames.chunk(i, delta) for i, delta in gained))
            if answer.complete:
                return


async def gather(
    batches: AsyncGenerator[Batch, None], answer: Answer, *, heard: Heard
) -> list[Written]:
    """All choices, complete."""
    written = [Written() for _ in answer.choices]
    async with aclosing(batches) as source:
        async for position, outputs in source:
            heard()
            for index, delta in answer.feed(position, outputs):
                written[index].add(delta)
            if answer.complete:
                break
    return written
