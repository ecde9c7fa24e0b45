"""Frames and pages over one connection, bytes straight from and into the memory they lie in.

Asyncio's own streams would copy each page twice more. Belongs to one event loop.
"""

import asyncio
from typing import TypeVar

import msgspec

from engine.handoff.channel import Channel
from engine.handoff.frames import HEADER_BYTES, MAX_FRAME, AnyFrame, Failed

F = TypeVar("F")


class HandoffFailed(Exception):
    """The other engine, the network or the time allowed does not let the pages go over."""


class FrameStream:
    """Every operation waits ``timeout_s`` at most. Raises HandoffFailed."""

    def __init__(self, channel: Channel, *, timeout_s: float) -> None:
        """``channel``: opened."""
        self._channel, self._timeout_s = channel, timeout_s
        self._sending = asyncio.Lock()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(AnyFrame).decode

    async def send(self, frame: AnyFrame, page: memoryview | None = None) -> None:
        """A page's bytes follow its frame."""
        data = self._encode(frame)
        async with self._sending:
            await self._send(len(data).to_bytes(HEADER_BYTES, "little") + data)
            if page is not None:
                await self._send(page)

    async def receive(self, *, patient: bool = False) -> AnyFrame:
        """``patient``: the other side may take its time. Raises HandoffFailed."""
        head = bytearray(HEADER_BYTES)
        await self._fill(memoryview(head), patient=patient)
        size = int.from_bytes(head, "little")
        if size > MAX_FRAME:
            raise HandoffFailed(f"a frame of {size} bytes exceeds {MAX_FRAME}")
        data = bytearray(size)
        await self._fill(memoryview(data))
        try:
            frame: AnyFrame = self._decode(data)
        except msgspec.DecodeError as error:
            raise HandoffFailed(f"no frame of ours: {error}") from error
        if isinstance(frame, Failed):
            raise HandoffFailed(f"the other engine says: {frame.reason[:200]}")
        return frame

    async def expect(self, kind: type[F], *, patient: bool = False) -> F:
        """Raises HandoffFailed."""
        frame = await self.receive(patient=patient)
        if not isinstance(frame, kind):
            raise HandoffFailed(f"{type(frame).__name__} came where {kind.__name__} was due")
        return frame

    async def into(self, page: memoryview) -> None:
        """The bytes of a page."""
        await self._fill(page)

    def close(self) -> None:
        self._channel.close()

    async def _send(self, data: bytes | memoryview) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._channel.write(data)
        except (OSError, TimeoutError) as error:
            late = f"nothing was taken in {self._timeout_s:g} s"
            raise HandoffFailed(str(error) or late) from error

    async def _fill(self, into: memoryview, *, patient: bool = False) -> None:
        try:
            while into:
                async with asyncio.timeout(None if patient else self._timeout_s):
                    count = await self._channel.read_into(into)
                if not count:
                    raise HandoffFailed("the other engine closed the connection")
                into, patient = into[count:], False
        except (OSError, TimeoutError) as error:
            raise HandoffFailed(str(error) or f"nothing came in {self._timeout_s:g} s") from error
