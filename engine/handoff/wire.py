"""The wire of handoffs: a thread that carries pages between engines over TCP or TLS.

It decides nothing. What it is asked for comes from the engine's loop and is done in its own thread;
what it learns goes to the loop's inbox. Slots bound its memory: one that is being filled, sent or
copied is nobody else's, so a side that is slow makes the other wait, page by page.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from engine.built import Built
from engine.config import EngineConfig
from engine.handoff.copies import over
from engine.handoff.frames import Drawn, Kept, Page
from engine.handoff.incoming import Incoming
from engine.handoff.news import Ended, News, PageTransfer
from engine.handoff.outgoing import Outgoing, Sent
from engine.handoff.sockets import HandoffTls, handoff_tls, listen, taken
from engine.handoff.stream import HandoffFailed
from engine.protocol import Role, Ticket, TokenLogprobs
from engine.residency import P

MOST_TASKS = 4096  # of them and of copies, before no further connection is taken

log = logging.getLogger(__name__)


class TcpWire:
    """A ``Wire``. Started and stopped by the main thread, asked by the loop's, and otherwise its
    own. ``layout`` says what a page is: engines exchange none of different layouts."""

    def __init__(
        self,
        transfer: PageTransfer,
        *,
        listen: str | None,
        layout: str,
        taking_slots: int,
        timeout_s: float,
        advertise: str | None = None,
        tls: HandoffTls | None = None,
    ) -> None:
        """``listen``: where pages come, None for nowhere; ``advertise``: as others reach it."""
        self._address, self._advertise, self._tls = listen, advertise, tls
        self._transfer, self._layout, self._timeout_s = transfer, layout, timeout_s
        self._free = deque(range(taking_slots, transfer.slots))  # for pages that leave
        self._incoming = Incoming(
            transfer, layout=layout, slots=taking_slots, timeout_s=timeout_s, tell=self._say
        )
        self._tell: Callable[[News], object] = lambda news: None
        self._outgoing: dict[str, Outgoing] = {}  # by ticket
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="handoffs", daemon=True)

    @property
    def takes(self) -> str:
        """Where other engines bring pages, once started; empty: nowhere."""
        return self._advertise or self._address or ""

    def start(self, tell: Callable[[News], object], *, timeout_s: float = 10.0) -> None:
        """Return once others can connect; ``takes`` then names the port chosen for 0. ``tell`` is
        called in this thread. Raises OSError.
        """
        self._tell = tell
        self._thread.start()
        self._ready.result(timeout_s)

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """Once is enough, and more is no harm."""
        self._soon(self._stop.set)
        self._thread.join(timeout_s)

    # As taker

    def expect(self, ticket: Ticket, key: bytes) -> None:
        self._soon(self._incoming.expect, ticket, key)

    def begin(self, ticket: str, first: int, *, direct: bool) -> None:
        self._soon(self._incoming.begin, ticket, first, direct)

    def taken(self, slot: int, ended: Ended) -> None:
        self._soon(self._free_in, slot, ended)

    def was_read(self, ticket: str, index: int, ended: Ended) -> None:
        self._soon(self._say_read, ticket, index, ended)

    def forget(self, ticket: str) -> None:
        self._soon(self._incoming.forget, ticket)

    # As giver

    def slot(self) -> int | None:
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def offer(self, ticket: Ticket, key: bytes, cached: int) -> None:
        out = Outgoing(
            ticket, key=key, cached=cached, layout=self._layout, pool=self._transfer.pool,
            free=self._free, view=self._transfer.view, timeout_s=self._timeout_s, tell=self._say,
            tls=self._tls,
        )  # fmt: skip
        self._soon(self._give, out)

    def page(self, ticket: str, index: int, slot: int, ended: Ended) -> None:
        self._soon(self._send, ticket, Sent(Page(index), slot, ended))

    def show(self, ticket: str, index: int, page: int) -> None:
        self._soon(self._send, ticket, Sent(Page(index, page)))

    def held(self, ticket: str, index: int) -> None:
        self._soon(self._send, ticket, Sent(Kept(index)))

    def drew(self, ticket: str, token: int, logprobs: TokenLogprobs | None) -> None:
        self._soon(self._send, ticket, Sent(Drawn(token, logprobs)))

    def drop(self, ticket: str, reason: str) -> None:
        self._soon(self._end, ticket, reason)

    # In the wire's thread

    def _say(self, news: News) -> None:
        self._tell(news)

    def _soon(self, work: Callable[..., None], *given: Any) -> None:
        loop = self._ready.result()
        with contextlib.suppress(RuntimeError):  # it has stopped: nobody is there to be told
            loop.call_soon_threadsafe(work, *given)

    def _free_in(self, slot: int, ended: Ended) -> None:
        async def later() -> None:
            await over(ended)
            self._incoming.free(slot)

        if ended():
            self._incoming.free(slot)
        else:
            self._spawn(later())

    def _say_read(self, ticket: str, index: int, ended: Ended) -> None:
        async def later() -> None:
            await over(ended)
            await self._incoming.was_read(ticket, index)

        self._spawn(later())

    def _give(self, out: Outgoing) -> None:
        self._outgoing[out.name] = out
        self._spawn(self._giving(out))

    async def _giving(self, out: Outgoing) -> None:
        try:
            await out.run()
        finally:
            if self._outgoing.get(out.name) is out:
                del self._outgoing[out.name]

    def _send(self, ticket: str, sent: Sent) -> None:
        if out := self._outgoing.get(ticket):
            out.put(sent)
        elif sent.slot is not None:
            self._free.append(sent.slot)

    def _end(self, ticket: str, reason: str) -> None:
        if out := self._outgoing.get(ticket):
            out.end(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        listening: socket.socket | None = None
        if self._address is not None:
            listening, self._address = listen(self._address)
        self._ready.set_result(loop)
        accepting = loop.create_task(self._accept(listening)) if listening else None
        await self._stop.wait()
        if accepting is not None:
            accepting.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if listening is not None:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptors left, say
                log.warning("an engine could not connect: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self._tasks) < MOST_TASKS:
                self._spawn(self._meet(connected))
            else:
                connected.close()

    async def _meet(self, connected: socket.socket) -> None:
        try:
            stream = await taken(connected, self._tls, timeout_s=self._timeout_s)
            with contextlib.closing(stream):
                await self._incoming.serve(stream)
        except HandoffFailed as failure:
            log.info("a handoff from another engine failed: %s", failure)


def tcp_wire(config: EngineConfig, built: Built[P]) -> TcpWire | None:
    """As the settings say; None where this engine takes part in no handoff. Raises TlsInvalid."""
    if built.transfer is None:
        return None
    slots = built.transfer.slots
    taking = {Role.PREFILL: 0, Role.DECODE: slots}.get(config.role, slots // 2)
    layout = (
        built.base.fingerprint,
        built.base.dtype,
        config.kv_cache_dtype.narrow,
        config.adapter_dtype.codes,
        config.page_tokens,
        built.transfer.page_bytes,
    )
    return TcpWire(
        built.transfer,
        listen=config.handoff_listen if config.takes else None,
        advertise=config.handoff_advertise,
        tls=handoff_tls(config),
        layout="/".join(map(str, layout)),
        taking_slots=taking if config.takes else 0,
        timeout_s=config.handoff_timeout_s,
    )
