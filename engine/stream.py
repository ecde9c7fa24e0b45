"""The outputs of one request, as the gateway that sent it reads them.

Imports no torch. Everything here belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from engine.protocol import Cancel, Grant, Output, RefusalCode, Submit, ToEngine, Usage

QUIET = 256  # outputs that may gather without anybody being told
# Outputs that came together, of which none ends a choice or asks for anything. False: nothing was
# done, whoever waits should have them.
Ear = Callable[[Sequence[Output]], bool]


class EngineLost(Exception):
    """The engine died, left or became unreachable; whatever ran there is gone."""


class RequestRefused(Exception):
    """The request was never started; sending it to another engine is safe."""

    def __init__(self, code: RefusalCode, detail: str, retry_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.retry_ms = code, detail, retry_ms


class Wire(Protocol):
    """The connection that a stream is one of many on."""

    def start(self, stream: "Stream") -> None:
        """Register and submit. Raises RequestRefused or EngineLost."""
        ...

    def tell(self, message: ToEngine) -> None:
        """Send without waiting."""
        ...

    async def flush(self) -> None:
        """Wait while the engine is slow to take what was sent. Raises EngineLost."""
        ...


class Stream:
    """The outputs of one request, in order, as an async context manager and iterator.

    Iterating raises RequestRefused or EngineLost where the outputs end that way. ``usage`` is
    the engine's count over the choices that have ended.
    """

    def __init__(self, wire: Wire, submit: Submit) -> None:
        self.submit = submit
        self._wire = wire
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
        self._wire.start(self)
        try:
            await self._wire.flush()
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
            self._wire.tell(Cancel(self.submit.request, [choice]))

    def grant(self, granted: int) -> None:
        """Allow ``granted`` tokens in total, over all choices."""
        self._wire.tell(Grant(self.submit.request, granted))

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
            self._wire.tell(Cancel(self.submit.request))
