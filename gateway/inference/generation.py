"""The engine's side of one request: one stream of outputs per prompt, placed on some engine.

An engine that refuses has not started, so another is tried. An engine lost later is not replaced:
part of the answer may have been shown. The engine's outcomes are told as the gateway's errors.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from engine.client import EngineLost as ConnectionDied
from engine.client import RequestRefused, Stream
from engine.protocol import Output, RefusalCode, Submit
from gateway.errors import (
    AdapterFailed,
    ContextTooLong,
    EngineLost,
    GatewayError,
    InvalidRequest,
    Unavailable,
)
from gateway.fleet.fleet import RETRY_SECONDS, Fleet
from gateway.fleet.member import Member
from gateway.inference.meter import Purse

Batch = tuple[int, list[Output]]  # which prompt, and everything that arrived for it
MOST_AT_ONCE = 32  # prompts of one request that run together
CANCEL_SECONDS = 2.0  # the longest wait for an engine's last count
ELSEWHERE = frozenset({RefusalCode.QUEUE_FULL, RefusalCode.DRAINING})  # worth another engine


class Generation:
    """Belongs to one request. Iterate ``batches`` once, then ``close``."""

    def __init__(
        self,
        fleet: Fleet,
        submits: Sequence[Submit],
        purse: Purse | None = None,
        *,
        stopped: Callable[[int], Collection[int]] = lambda position: (),
    ) -> None:
        """``stopped``: choices of a prompt of which nothing more will be shown, whatever comes."""
        self._stopped, self._dropped = stopped, set[tuple[int, int]]()
        self._fleet = fleet
        self._submits = submits
        self._purse = purse
        self._streams: dict[int, Stream] = {}
        self.engine = self.boot = ""  # that took the first prompt

    def batches(self) -> AsyncGenerator[Batch, None]:
        """Raises GatewayError: a refusal before the first batch, a loss at any time."""
        parts = [self._prompt(position) for position in range(len(self._submits))]
        return parts[0] if len(parts) == 1 else _merge(parts)

    async def close(self) -> list[Batch]:
        """Stop what still runs and return what arrived meanwhile, final counts included."""
        left = [stream for stream in self._streams.values() if not stream.finished]
        await asyncio.gather(*(_stop(stream) for stream in left))
        return [(position, stream.take()) for position, stream in self._streams.items()]

    async def _prompt(self, position: int) -> AsyncGenerator[Batch, None]:
        submit = self._submits[position]
        tried: list[Member] = []
        while True:
            member = self._place(submit, tried)
            try:
                async with member.generate(submit) as stream:
                    self._streams[position] = stream
                    self._name(member, position)
                    outputs = await stream.batch()
                    while outputs:
                        yield position, outputs
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
                tried.append(member)
                if refused.code not in ELSEWHERE or len(tried) >= len(self._fleet.ready):
                    raise _told(refused) from refused
            except ConnectionDied as lost:
                raise EngineLost(
                    "The engine was lost while it worked on this request.",
                    retry_after=RETRY_SECONDS,
                ) from lost

    def _drop(self, stream: Stream, position: int) -> None:
        """The engine need not go on with what a stop string has ended here."""
        for choice in self._stopped(position):
            if (position, choice) not in self._dropped:
                self._dropped.add((position, choice))
                stream.drop(choice)

    def _place(self, submit: Submit, tried: list[Member]) -> Member:
        digest = submit.adapter.digest if submit.adapter else None
        return self._fleet.choose(digest, tried=tried)

    def _name(self, member: Member, position: int) -> None:
        if position == 0 and (welcome := member.welcome):
            self.engine, self.boot = welcome.engine, welcome.boot


async def _paid(purse: Purse, stream: Stream, position: int) -> bool:
    """Pay for what comes next. False: there is no more money, and nothing more comes."""
    total = await purse.pay(position)
    if total is not None:
        stream.grant(total)
    return not purse.ended(position)


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
