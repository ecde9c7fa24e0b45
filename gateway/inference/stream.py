"""Writes an answer while it is generated, or gathers it to be sent whole.

Both return before the last bytes: those go out once the request is settled and recorded.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gateway.http import Reply
from gateway.inference.answer import Answer, Written
from gateway.inference.frames import Frames
from gateway.inference.generation import Batch

Heard = Callable[[], None]  # called as each batch of tokens arrives


async def stream(
    batches: AsyncGenerator[Batch, None],
    answer: Answer,
    frames: Frames,
    *,
    reply: Reply,
    heard: Heard,
) -> None:
    """Send all but the closing frames. Nothing is sent before the engine's first batch."""
    async with aclosing(batches) as source:
        async for position, outputs in source:
            heard()
            text = b"".join(frames.chunk(i, delta) for i, delta in answer.feed(position, outputs))
            if not reply.begun:
                await reply.events()
                text = frames.opening() + text
            if text:  # tokens that were ready together are one write
                await reply.write(text)
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
