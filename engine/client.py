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
from collections.abc import Callable, Sequence
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
    Cancel,
    Counts,
    Drain,
    Goodbye,
    Grant,
    Hello,
    Load,
    Metrics,
    Output,
    Prefetch,
    Recorded,
    RefusalCode,
    Refused,
    Retire,
    Step,
    Submit,
    ToEngine,
    ToGateway,
    Usage,
    Verdict,
    Welcome,
)
from engine.tls import NO_CREDENTIALS, Credentials
from engine.transport import Connection, ConnectionLost, dial

QUIET = 256  # outputs that may gather without anybody being told
# Outputs that came together, of which none ends a choice or asks for anything. False: nothing was
# done, whoever waits should have them.
Ear = Callable[[Sequence[Output]], bool]
Answer = TypeVar("Answer", Counts, Metrics, Recorded, Verdict)


class EngineLost(Exception):
    """The engine died, left or became unreachable; whatever ran there is gone."""


class UnequalVersions(EngineLost):
    """Engine and gateway speak different versions of the protocol; neither can serve the other."""


class RequestRefused(Exception):
    """The request was never started; sending it to another engine is safe."""

    def __init__(self, code: RefusalCode, detail: str, retry_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.retry_ms = code, detail, retry_ms


class Stream:
    """The outputs of one request, in order, as an async context manager and iterator.

    Iterating raises RequestRefused or EngineLost where the outputs end that way. ``usage`` is
    the engine's count over the choices that have ended.
    """

    def __init__(self, client: "EngineClient", submit: Submit) -> None:
        self.submit = submit
        self._client = client
        self._arrived: list[Output] = []
        self._urgent = False  # one of them ends a choice, or asks for more to be granted
        self._news: asyncio.Future[None] | None = None  # somebody waits for more
        self.quiet = False  # wake whoever waits only for what matters now, or for QUIET of them
        self.ear: Ear | None = None  # hears outputs for which whoever waits need not wake
        self.finished = False  # every choice has ended, or none will: there is nothing to cancel
        self._end: asyncio.Future[None] | None = None  # somebody waits until it is
        self._failure: EngineLost | RequestRefused | None = None
        self._ended: set[int] = set()
        self.usage = Usage(prompt_tokens=0)

    async def __aenter__(self) -> Self:
        self._client.start(self)
        try:
            await self._client.flush()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if not self._arrived and not await self._more():
            raise StopAsyncIteration
        return self._arrived.pop(0)

    async def batch(self) -> list[Output]:
        """Everything that arrived since the last call, waiting for the first; empty at the end."""
        if not self._arrived:
            await self._more()
        return self.take()

    def take(self) -> list[Output]:
        """What has arrived and was not read, without waiting."""
        outputs, self._arrived, self._urgent = self._arrived, [], False
        return outputs

    async def _more(self) -> bool:
        """Wait until something has arrived; False: nothing will."""
        while not self._arrived:
            if self._failure:
                raise self._failure
            if self.finished:
                return False
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return True

    @property
    def awaited(self) -> bool:
        """Somebody waits for an output, and has had all that came."""
        return self._news is not None and not self._news.done()

    async def cancel(self, *, timeout_s: float) -> Usage:
        """Stop the request and wait for the engine's final count of what it generated.

        Outputs that arrived meanwhile can still be read. Raises EngineLost, or TimeoutError if
        the engine does not answer in time.
        """
        self._leave()
        if not self.finished:
            self._end = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(timeout_s):
                await self._end
        if isinstance(self._failure, EngineLost):
            raise self._failure
        return self.usage

    def drop(self, choice: int) -> None:
        """Stop one choice; the others go on."""
        if not self.finished:
            self._client.tell(Cancel(self.submit.request, [choice]))

    def grant(self, granted: int) -> None:
        """Allow ``granted`` tokens in total, over all choices."""
        self._client.tell(Grant(self.submit.request, granted))

    def deliver(self, output: Output, *, more: bool = False) -> None:
        """Called by the client for each output as it arrives. ``more``: others came with it, and
        ``tell`` follows."""
        self._arrived.append(output)
        if output.finish is not None:
            self._urgent = True
            self._ended.add(output.index)
            self._count(output.usage)
            if len(self._ended) == self.submit.n:
                self._finish()
        elif output.wants is not None:
            self._urgent = True
        if not more:
            self.tell()

    def tell(self) -> None:
        """Whoever waits wakes once for all that came together.

        An ear hears only while somebody waits: then nothing that came before is on its way. What
        it fails with is theirs.
        """
        news, arrived = self._news, self._arrived
        if news is None or not arrived:
            return
        if not self._urgent and not news.done():
            if self.quiet and len(arrived) < QUIET:
                return
            if self.ear is not None:
                try:
                    heard = self.ear(arrived)
                except Exception as error:
                    heard, self._news = True, None
                    news.set_exception(error)
                if heard:
                    self._arrived = []
                    return
        self._wake()

    def fail(self, failure: EngineLost | RequestRefused) -> None:
        """Called by the client when nothing more will arrive."""
        if not self.finished:
            self._failure = failure
        self._finish()
        self._wake()

    def _finish(self) -> None:
        self.finished = True
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    def _count(self, usage: Usage | None) -> None:
        if usage is not None:  # prompt and cache counts are the request's, not the choice's
            self.usage = Usage(
                prompt_tokens=max(self.usage.prompt_tokens, usage.prompt_tokens),
                cached_tokens=max(self.usage.cached_tokens, usage.cached_tokens),
                completion_tokens=self.usage.completion_tokens + usage.completion_tokens,
            )

    def _leave(self) -> None:
        if not self.finished:
            self._client.tell(Cancel(self.submit.request))


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
