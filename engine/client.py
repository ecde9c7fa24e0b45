"""A gateway's end of one engine: many requests over one connection.

    client = await EngineClient.connect("unix:/run/engine.sock", gateway="gw-1")
    async with client.generate(submit) as stream:
        async for output in stream:
            ...

Leaving the block early sends ``Cancel``. If the connection dies, every open stream raises
``EngineLost`` at once. Imports no torch. Everything here belongs to one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

from engine.protocol import (
    VERSION,
    AdapterRef,
    AskCounts,
    AskMetrics,
    AskRecorded,
    AskReference,
    Counts,
    Drain,
    Goodbye,
    Hello,
    Load,
    Metrics,
    Prefetch,
    Recorded,
    RefusalCode,
    Refused,
    Retire,
    Step,
    Submit,
    ToEngine,
    ToGateway,
    Verdict,
    Welcome,
)
from engine.stream import EngineLost, RequestRefused, Stream
from engine.tls import NO_CREDENTIALS, Credentials
from engine.transport import Connection, ConnectionLost, dial

Answer = TypeVar("Answer", Counts, Metrics, Recorded, Verdict)


class UnequalVersions(EngineLost):
    """Engine and gateway speak different versions of the protocol; neither can serve the other."""


class EngineClient:
    """One connection to one engine. ``load`` is its last pushed Load, ``lost`` why it ended."""

    def __init__(self, connection: Connection[ToGateway, ToEngine], welcome: Welcome) -> None:
        self.welcome = welcome
        self.load: Load | None = None
        self.goodbye: str | None = None
        self.lost: EngineLost | None = None
        self._connection = connection
        self._streams: dict[str, Stream] = {}
        self._metrics: deque[asyncio.Future[Metrics]] = deque()
        self._counts: deque[asyncio.Future[Counts]] = deque()
        self._recorded: deque[asyncio.Future[Recorded]] = deque()
        self._verdicts: dict[str, asyncio.Future[Verdict]] = {}
        self._ended = asyncio.Event()
        connection.hear(self._take, self._end)

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        gateway: str,
        credentials: Credentials = NO_CREDENTIALS,
        timeout_s: float = 10.0,
    ) -> Self:
        """Dial and greet. Raises EngineLost, or AddressInvalid."""
        tokens = credentials.tokens
        hello = Hello(gateway, token=None if tokens is None else tokens.shown)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await dial(address, ToGateway, credentials.tls)
                try:
                    return cls(connection, await _greet(connection, hello))
                except BaseException:
                    connection.abort()
                    raise
        except (ConnectionLost, TimeoutError) as error:
            raise EngineLost(str(error) or f"{address}: no answer in {timeout_s} s") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def open(self) -> int:
        """Requests the engine has not ended, also those that were left and cancelled."""
        return len(self._streams)

    def generate(self, submit: Submit) -> Stream:
        return Stream(self, submit)

    async def metrics(self, *, timeout_s: float = 5.0) -> str:
        """Prometheus text. Raises EngineLost or TimeoutError."""
        answer: asyncio.Future[Metrics] = asyncio.get_running_loop().create_future()
        self._metrics.append(answer)
        self.tell(AskMetrics())
        async with asyncio.timeout(timeout_s):
            return (await answer).text

    async def counts(self, requests: Sequence[str], *, timeout_s: float = 5.0) -> list[Counts]:
        """The engine's own record of these requests, in order. As for ``metrics``."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Counts]] = [loop.create_future() for _ in requests]
        self._counts.extend(answers)
        self.tell(AskCounts(list(requests)))
        async with asyncio.timeout(timeout_s):
            return list(await asyncio.gather(*answers))

    async def recorded(self, start: int, most: int, *, timeout_s: float = 10.0) -> list[Counts]:
        """A page of the engine's own record, oldest first. As for ``metrics``."""
        answer: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._recorded.append(answer)
        self.tell(AskRecorded(start, most))
        async with asyncio.timeout(timeout_s):
            return (await answer).counts

    async def reference(
        self,
        adapter: AdapterRef,
        tokens: Sequence[int],
        tops: Sequence[Sequence[int]],
        *,
        timeout_s: float,
    ) -> Verdict:
        """Log-probabilities by the model's definition. Raises EngineLost or TimeoutError."""
        request = uuid4().hex
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._verdicts[request] = answer
        self.tell(AskReference(request, adapter, list(tokens), [list(top) for top in tops]))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._verdicts.pop(request, None)

    def prefetch(self, adapter: AdapterRef) -> None:
        self.tell(Prefetch(adapter))

    def retire(self, digest: str) -> None:
        self.tell(Retire(digest))

    def drain(self) -> None:
        self.tell(Drain())

    async def wait_lost(self) -> EngineLost:
        """Return once the connection has ended, with the reason."""
        await self._ended.wait()
        assert self.lost is not None
        return self.lost

    def give_up(self, reason: str) -> None:
        """It does not answer any more: every open stream raises EngineLost now."""
        self._lose(reason)

    async def close(self) -> None:
        """End the connection: the engine cancels what is open on it."""
        self._connection.abort()
        await self._connection.close()

    def start(self, stream: Stream) -> None:
        """Register and submit. Raises RequestRefused without credit, EngineLost when gone."""
        request = stream.submit.request
        if self.lost:
            raise EngineLost(str(self.lost))
        if request in self._streams:
            raise ValueError(f"request {request!r} is already open on this connection")
        if self.open >= self.welcome.credits:
            detail = f"all {self.welcome.credits} requests this engine allows a gateway are open"
            raise RequestRefused(RefusalCode.QUEUE_FULL, detail, retry_ms=100)
        self._streams[request] = stream
        self.tell(stream.submit)

    def tell(self, message: ToEngine) -> None:
        """Send without waiting. What a lost engine does not hear, it does not need to."""
        if self.lost is None:
            try:
                self._connection.write(message)
            except (ConnectionLost, OSError) as error:
                self._lose(str(error))
        elif isinstance(message, AskMetrics | AskCounts | AskRecorded | AskReference):
            self._lose(str(self.lost))

    async def flush(self) -> None:
        """Wait while the engine is slow to take what was sent. Raises EngineLost."""
        try:
            await self._connection.drain()
        except ConnectionLost as error:
            raise EngineLost(str(error)) from error

    def _end(self, why: str) -> None:
        self._lose(self.goodbye or why)

    def _take(self, messages: Sequence[ToGateway]) -> None:
        """What came together. Several passes of a busy engine wake a request once."""
        streams, last = self._streams, messages[-1]
        waiting: list[Stream] = []
        for message in messages:
            if not isinstance(message, Step):
                self._hear(message)
                continue
            more = message is not last
            for output in message.outputs:
                if (found := streams.get(output.request)) is not None:
                    found.deliver(output, more=more)
                    if more:
                        waiting.append(found)
                    if output.finish is not None and found.finished:
                        del streams[output.request]
        for stream in waiting:
            stream.tell()

    def _hear(self, message: ToGateway) -> None:
        match message:
            case Refused(request, code, detail, retry_ms):
                if stream := self._streams.pop(request, None):
                    stream.fail(RequestRefused(code, detail, retry_ms))
            case Load():
                self.load = message
            case Metrics():
                _answer(self._metrics, message)
            case Counts():
                _answer(self._counts, message)
            case Recorded():
                _answer(self._recorded, message)
            case Verdict(request):
                if (verdict := self._verdicts.get(request)) and not verdict.done():
                    verdict.set_result(message)
            case Goodbye(reason):
                self.goodbye = reason

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or EngineLost(reason)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(EngineLost(reason))
        _fail(self._metrics, reason)
        _fail(self._counts, reason)
        _fail(deque(self._verdicts.values()), reason)
        _fail(self._recorded, reason)
        self._connection.abort()
        self._ended.set()


async def _greet(connection: Connection[ToGateway, ToEngine], hello: Hello) -> Welcome:
    await connection.send(hello)
    answer = await connection.receive()
    if isinstance(answer, Welcome):
        return answer
    if isinstance(answer, Goodbye) and answer.version not in (0, VERSION):
        raise UnequalVersions(
            f"the engine speaks version {answer.version} of the protocol, this gateway {VERSION}"
        )
    reason = answer.reason if isinstance(answer, Goodbye) else f"answered {type(answer).__name__}"
    raise ConnectionLost(f"the engine did not welcome us: {reason}")


def _answer(waiting: deque[asyncio.Future[Answer]], message: Answer) -> None:
    # One that timed out keeps its place: answers come in the order of the questions.
    if waiting and not (answer := waiting.popleft()).done():
        answer.set_result(message)


def _fail(waiting: deque[asyncio.Future[Answer]], reason: str) -> None:
    for answer in waiting:
        if not answer.done():
            answer.set_exception(EngineLost(reason))
    waiting.clear()
