"""Many requests for little work: connections that ask again as soon as they were answered.

No future, no task and no timer for a request: what the load costs is a tenth of what it measures.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from bench.gateway.load import LoadFailed

STALLED_S = 120.0
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Ask:
    sent: bytes
    statuses: tuple[int, ...]  # those that are right
    billed: bool = True  # if its status is 200
    leaves: bool = False  # its client closes the connection at the first bytes


class Pump:
    """Sends all of ``asks`` over connections to each of ``ports`` in turn. Belongs to one loop."""

    def __init__(self, ports: Sequence[int], asks: Iterator[Ask]) -> None:
        self._ports, self._asks = ports, asks
        self.statuses: Counter[int] = Counter()
        self.billed = 0

    async def run(self, connections: int) -> None:
        """Until the last was answered. Raises LoadFailed."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._busy = connections
        for number in range(connections):
            await self._connect(self._ports[number % len(self._ports)])
        answered = -1
        while not self._over.done():
            await asyncio.wait((self._over,), timeout=STALLED_S if answered else LOOK_S)
            now = self.statuses.total()
            if not self._over.done() and now == answered:
                raise LoadFailed(f"no answer for {STALLED_S:g} s")
            answered = now
        self._over.result()

    def next(self) -> Ask | None:
        return next(self._asks, None)

    def answered(self, ask: Ask, status: int, answer: bytes) -> None:
        self.statuses[status] += 1
        if status not in ask.statuses:
            self.fail(LoadFailed(f"{status} where {ask.statuses} is right: {answer[:600]!r}"))
        self.billed += ask.billed and status == 200

    def ended(self) -> None:
        """One connection has nothing more to ask."""
        self._busy -= 1
        if not self._busy and not self._over.done():
            self._over.set_result(None)

    def fail(self, failure: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(failure)

    def again(self, port: int) -> None:
        """A connection that was closed on purpose is made anew."""
        task = asyncio.ensure_future(self._connect(port))
        task.add_done_callback(self._connected)

    def _connected(self, task: "asyncio.Task[None]") -> None:
        if (error := task.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else LoadFailed(str(error)))

    async def _connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: _Hose(self, port), "127.0.0.1", port)


class _Hose(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pump: Pump, port: int) -> None:
        self._pump, self._port = pump, port
        self._ask: Ask | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._go_on()

    def _go_on(self) -> None:
        self._got, self._end = b"", 0
        self._ask = self._pump.next()
        if self._ask is None:
            self._transport.close()
            self._pump.ended()
        else:
            self._transport.write(self._ask.sent)

    def data_received(self, data: bytes) -> None:
        ask = self._ask
        if ask is None:
            return
        got = self._got = self._got + data
        if not self._end and not self._begin(got):
            return
        if ask.leaves:
            self._finish(ask, closes=True)
        elif self._end > 0:
            if len(got) >= self._end:
                self._finish(ask)
        elif got.endswith(b"0\r\n\r\n"):
            self._finish(ask)

    def _begin(self, got: bytes) -> bool:
        """The head is here; its end, and the body's if it says so. -1: the body comes in chunks."""
        head, found, _ = got.partition(b"\r\n\r\n")
        if not found:
            return False
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        self._end = len(head) + 4 + int(length) if length else -1
        return True

    def _finish(self, ask: Ask, *, closes: bool = False) -> None:
        got, self._ask = self._got, None
        self._pump.answered(ask, int(got[9:12]), got)
        if closes:
            self._transport.abort()
            self._pump.again(self._port)
        elif b"\r\nconnection: close" in got[: got.find(b"\r\n\r\n") + 2].lower():
            self._transport.close()
            self._pump.again(self._port)
        else:
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if self._ask is not None:
            self._pump.fail(LoadFailed(f"the connection was lost: {error}"))
