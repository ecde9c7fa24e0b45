"""The engine's side of one request: one stream of outputs per prompt, placed on some engine.

An engine that refuses has not started, so another is tried; so it is where one was lost before
anything of the answer came. An engine lost later is not replaced: part of the answer may have been
shown. The engine's outcomes are told as the gateway's errors.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from msgspec import structs

from engine.protocol import Output, RefusalCode, Submit
from engine.stream import Ear, RequestRefused, Stream
from engine.stream import EngineLost as ConnectionDied
from gateway.errors import (
    AdapterFailed,
    ContextTooLong,
    EngineLost,
    GatewayError,
    InvalidRequest,
    NoEngine,
    Unavailable,
)
from gateway.fleet.crew import RETRY_SECONDS, Crew
from gateway.fleet.member import Member
from gateway.fleet.router import Wish
from gateway.inference.meter import Purse

Batch = tuple[int, list[Output]]  # which prompt, and everything that arrived for it
MOST_AT_ONCE = 32  # prompts of one request that run together
MOST_LOST = 2  # engines that one prompt may lose before it is given up
CANCEL_SECONDS = 2.0  # the longest wait for an engine's last count
ELSEWHERE = frozenset({RefusalCode.QUEUE_FULL, RefusalCode.DRAINING})  # worth another engine


class Generation:
    """Belongs to one request. Iterate ``batches`` once, then ``close``."""

    def __init__(
        self,
        crew: Crew,
        submits: Sequence[Submit],
        purse: Purse | None = None,
        *,
        stopped: Callable[[int], Collection[int]] = lambda position: (),
        whole: bool = False,
    ) -> None:
        """``stopped``: choices of a prompt of which nothing more will be shown, whatever comes.
        ``whole``: nothing of what comes is looked at before all of it is there."""
        self._whole = whole
        self._stopped, self._dropped = stopped, set[tuple[int, int]]()
        self._crew = crew
        self._submits = submits
        self._purse = purse
        self._streams: dict[int, Stream] = {}
        self.ear: Ear | None = None  # of the only choice: hears what need not go by ``batches``
        self.engine = self.boot = ""  # that took the first prompt

    def batches(self) -> AsyncGenerator[Batch, None]:
        """Raises GatewayError: a refusal before the first batch, a loss at any time."""
        parts = [self._prompt(position) for position in range(len(self._submits))]
        return parts[0] if len(parts) == 1 else _merge(parts)

    async def close(self) -> list[Batch]:
        """Stop what still runs and return what arrived meanwhile, final counts included."""
        self.ear = None  # it refers to us, and would keep us until the collector looks
        for stream in self._streams.values():
            stream.ear = None
        if left := [stream for stream in self._streams.values() if not stream.finished]:
            await asyncio.gather(*map(_stop, left))
        return [(position, stream.take()) for position, stream in self._streams.items()]

    async def _prompt(self, position: int) -> AsyncGenerator[Batch, None]:
        submit, began, lost = self._submits[position], time.monotonic(), 0
        tried: list[Member] = []
        failure: GatewayError | None = None
        while True:
            member = self._place(submit, tried, failure)
            tried.append(member)
            heard = False
            try:
                async with self._crew.asked(member, submit) as stream:
                    self._streams[position] = stream
                    self._name(member, position)
                    outputs = await stream.batch()
                    while outputs:
                        heard = True
                        yield position, outputs
                        stream.quiet = self._whole and self._is_paid(position)
                        stream.ear = self.ear
                        if submit.n > 1:
                            self._drop(stream, position)
                        if (
                            (purse := self._purse) is not None
                            and not stream.finished
                            and purse.wants(position, outputs)
                            and not await _paid(purse, stream, position)
                        ):
                            return
                        outputs = await stream.batch()
                    return
            except RequestRefused as refused:
                failure = _told(refused)
                if refused.code not in ELSEWHERE:
                    raise failure from refused
            except ConnectionDied as died:
                failure, lost = _lost(), lost + 1
                if heard or lost > MOST_LOST:
                    raise failure from died
                submit = _again(self._submits[position], lost, time.monotonic() - began)

    def is_paid(self, outputs: Sequence[Output]) -> bool:
        """By the only prompt, which needs no more for now: they are counted. Else nothing is."""
        return self._purse is None or self._purse.counts(0, outputs)

    def _is_paid(self, position: int) -> bool:
        """Whatever it may come to; else somebody must see in time that it needs more."""
        return self._purse is None or self._purse.covers(position)

    def _drop(self, stream: Stream, position: int) -> None:
        """The engine need not go on with what a stop string has ended here."""
        for choice in self._stopped(position):
            if (position, choice) not in self._dropped:
                self._dropped.add((position, choice))
                stream.drop(choice)

    def _place(
        self, submit: Submit, tried: Sequence[Member], failure: GatewayError | None
    ) -> Member:
        """Raises the last failure where nobody is left to be tried."""
        digest = submit.adapter.digest if submit.adapter else None
        try:
            return self._crew.choose(Wish(digest, submit.tenant, submit.tokens), tried=tried)
        except NoEngine:
            if failure is None:
                raise
        raise failure

    def _name(self, member: Member, position: int) -> None:
        if position == 0 and (welcome := member.welcome):
            self.engine, self.boot = welcome.engine, welcome.boot


async def _paid(purse: Purse, stream: Stream, position: int) -> bool:
    """Pay for what comes next. False: there is no more money, and nothing more comes."""
    total = await purse.pay(position)
    if total is not None:
        stream.grant(total)
    return not purse.ended(position)


def _again(submit: Submit, lost: int, elapsed_s: float) -> Submit:
    """Under a name of its own: the engine that was lost may have recorded what it began."""
    left = submit.deadline_ms
    if left is not None:
        left = max(left - int(elapsed_s * 1000), 1)
    return structs.replace(submit, request=f"{submit.request}+{lost}", deadline_ms=left)


def _lost() -> EngineLost:
    text = "The engine was lost while it worked on this request."
    return EngineLost(text, retry_after=RETRY_SECONDS)


async def _stop(stream: Stream) -> None:
    with contextlib.suppress(TimeoutError, ConnectionDied):  # then what was received counts
        await stream.cancel(timeout_s=CANCEL_SECONDS)


async def _merge(parts: Sequence[AsyncGenerator[Batch, None]]) -> AsyncGenerator[Batch, None]:
    """Batches of several prompts as they come; the first failure ends them all."""
    queue: asyncio.Queue[Batch | GatewayError | None] = asyncio.Queue()
    some = asyncio.Semaphore(MOST_AT_ONCE)

    async def pump(part: AsyncGenerator[Batch, None]) -> None:
        try:
            async with some:
                async for batch in part:
                    queue.put_nowait(batch)
        except GatewayError as error:
            queue.put_nowait(error)
        finally:
            queue.put_nowait(None)

    pumps = [asyncio.create_task(pump(part)) for part in parts]
    running = len(pumps)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, GatewayError):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _told(refused: RequestRefused) -> GatewayError:
    wait = refused.retry_ms / 1000 if refused.retry_ms else RETRY_SECONDS
    match refused.code:
        case RefusalCode.QUEUE_FULL | RefusalCode.DRAINING:
            return Unavailable("The engines are busy; try again shortly.", retry_after=wait)
        case RefusalCode.ADAPTER_MISSING | RefusalCode.ADAPTER_INVALID:
            return AdapterFailed("The engine cannot load this adapter.")
        case RefusalCode.PROMPT_TOO_LONG | RefusalCode.NEVER_FITS:
            return ContextTooLong(f"The prompt does not fit: {refused.detail}.")
        case RefusalCode.INVALID:
            return InvalidRequest(f"The engine refuses this request: {refused.detail}.")
