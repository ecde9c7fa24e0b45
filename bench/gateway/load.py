"""Clients that cost little: raw connections that are kept, and the times of their answers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from tests.gateway.serving import BASE

SENTENCES = 28  # 200 tokens of the stub's vocabulary, with the template's
MOST_CONNECTIONS = 512
ANSWER_S = 60.0


class LoadFailed(RuntimeError):
    """A request was refused, or not answered: there is nothing to report."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of one answer, in seconds from when the request was written."""

    first: float  # the first byte of the body
    last: float


def chat(tokens: int, *, stream: bool) -> bytes:
    text = "The quick brown fox " * SENTENCES
    return orjson.dumps(
        {
            "model": BASE,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "stream": stream,
            "ignore_eos": True,
        }
    )


def request(path: str, key: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[Times] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def ask(self, sent: bytes) -> "asyncio.Future[Times]":
        assert self._answer is None, "one at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._head, self._tail, self._first, self._left = b"", b"", 0.0, -1
        self._began = time.perf_counter()
        self.transport.write(sent)
        return self._answer

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._left == -1:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._end(LoadFailed((head + end + data)[:1000].decode("latin-1")))
                return
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            self._left = int(length) if length else -2  # chunked
        if data and not self._first:
            self._first = now
        if self._left >= 0:
            self._left -= len(data)
            done = self._left <= 0
        else:
            self._tail = (self._tail + data)[-5:]
            done = self._tail == b"0\r\n\r\n"
        if done:
            self._end(Times(self._first - self._began, now - self._began))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._end(LoadFailed(f"the connection was lost: {error}"))

    def _end(self, outcome: Times | LoadFailed) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if isinstance(outcome, Times):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)


class Wires:
    """Connections to one port, made as needed, used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Wire] = []
        self._made: list[Wire] = []

    async def ask(self, sent: bytes) -> Times:
        """Raises LoadFailed."""
        wire = self._idle.pop() if self._idle else await self._connect()
        times = await asyncio.wait_for(wire.ask(sent), ANSWER_S)
        self._idle.append(wire)
        return times

    async def _connect(self) -> Wire:
        if len(self._made) >= MOST_CONNECTIONS:
            raise LoadFailed(f"more than {MOST_CONNECTIONS} requests are open")
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(Wire, "127.0.0.1", self._port)
        self._made.append(wire)
        return wire

    def close(self) -> None:
        for wire in self._made:
            wire.transport.close()


async def closed_loop(port: int, sent: bytes, count: int, *, connections: int) -> None:
    """As fast as it goes: each connection asks again when it was answered."""
    wires = Wires(port)
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            await wires.ask(sent)

    try:
        await asyncio.gather(*(one() for _ in range(connections)))
    finally:
        wires.close()


async def open_loop(port: int, sent: bytes, *, rate: float, seconds: float) -> list[Times]:
    """So many a second, evenly, however long answers take."""
    wires, start = Wires(port), time.perf_counter()
    tasks: list[asyncio.Task[Times]] = []
    try:
        for number in range(int(rate * seconds)):
            wait = start + number / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(wires.ask(sent)))
        return list(await asyncio.gather(*tasks))
    finally:
        wires.close()


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
