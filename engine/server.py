"""The wire: an asyncio thread that accepts gateways and carries messages to and from the loop.

It never computes and never waits for a slow gateway: one that leaves too much unread is
dropped. A connection that ends, however it ends, is reported to the loop, which cancels what
was submitted on it.
"""

import asyncio
import itertools
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from engine.address import HostPort, NetAddress, read_address
from engine.core import Gone, Heard, Said
from engine.mailbox import Mailbox
from engine.protocol import (
    VERSION,
    AskMetrics,
    AskReference,
    Goodbye,
    Hello,
    Load,
    Metrics,
    ToEngine,
    ToGateway,
    Verdict,
    Welcome,
)
from engine.tls import NO_GUARD, Guard
from engine.transport import Connection, ConnectionLost, listen

HELLO_S = 10.0
FULL_S = 0.005  # between tries at a full inbox; meanwhile that gateway's socket fills
SWITCH_S = 0.0005  # at most, until a thread that asks for the interpreter has it

Peer = Connection[ToEngine, ToGateway]
log = logging.getLogger(__name__)


class Server:
    """Started and stopped by the main thread; everything else belongs to its own."""

    def __init__(
        self,
        address: str,
        welcome: Welcome,
        inbox: Mailbox[Heard],
        outbox: Mailbox[Said],
        *,
        metrics_text: Callable[[], str],
        max_write_buffer: int,
        reference: Callable[[AskReference], Verdict] | None = None,
        guard: Guard = NO_GUARD,
    ) -> None:
        """``reference`` may take minutes: it runs in a thread of its own, one at a time."""
        self.address, self._welcome = address, welcome
        self._inbox, self._outbox = inbox, outbox
        self._metrics_text, self._max_write_buffer = metrics_text, max_write_buffer
        self._reference, self._guard = reference, guard
        self._thinking = ThreadPoolExecutor(1, thread_name_prefix="reference")
        self._peers: dict[int, Peer] = {}
        self._numbers = itertools.count()
        self._load: Load | None = None
        self._listening: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._switch_s = sys.getswitchinterval()

    def start(self, *, timeout_s: float = 10.0) -> None:
        """Return once gateways can connect. Raises OSError or AddressInvalid.

        ``address`` then names the port that was chosen for ``tcp:HOST:0`` or ``tls:HOST:0``.

        Until ``stop`` the process's threads take shorter turns than the interpreter's 5 ms: the
        wire gives its turn away at every call to the system, and the loop may compute all the time.
        """
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()
        self._listening.result(timeout_s)

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """Send what was said, close every connection and end the thread."""
        loop = self._listening.result(timeout_s)
        loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout_s)
        sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._listening.done():
                raise
            self._listening.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await listen(self.address, ToEngine, self._meet, self._guard.tls)
        if isinstance(at := read_address(self.address), NetAddress):
            place = HostPort(at.host, server.sockets[0].getsockname()[1])
            self.address = str(NetAddress(at.kind, place))

        def wake() -> None:
            loop.call_soon_threadsafe(self._deliver)

        self._outbox.on_put = wake
        self._listening.set_result(loop)
        await self._stop.wait()
        self._outbox.on_put = None
        self._thinking.shutdown(wait=False, cancel_futures=True)
        self._deliver()
        server.close()
        peers = list(self._peers.values())
        try:
            async with asyncio.timeout(1.0):
                await asyncio.gather(*(peer.close() for peer in peers))
        except TimeoutError:
            for peer in peers:
                peer.abort()

    async def _meet(self, peer: Peer) -> None:
        number = next(self._numbers)
        try:
            async with asyncio.timeout(HELLO_S):
                greeting = await peer.receive()
            if problem := self._problem(greeting):
                await peer.send(Goodbye(problem, VERSION))
                return
            self._peers[number] = peer
            self._write(number, self._welcome)
            if self._load:
                self._write(number, self._load)
            await self._listen(number, peer)
        except (ConnectionLost, TimeoutError) as error:
            log.info("gateway connection %d ended: %s", number, error)
        finally:
            self._peers.pop(number, None)
            self._inbox.put(Heard(number, Gone()), force=True)
            peer.end()

    def _problem(self, greeting: ToEngine) -> str:
        if not isinstance(greeting, Hello):
            return f"expected Hello, got {type(greeting).__name__}"
        if self._guard.tokens is not None and not self._guard.tokens.accepts(greeting.token):
            return "this engine asks for a token, and the gateway's is none of those it accepts"
        if greeting.version != VERSION:
            return f"this engine speaks version {VERSION}, the gateway version {greeting.version}"
        return ""

    async def _listen(self, number: int, peer: Peer) -> None:
        while True:
            match await peer.receive():
                case AskMetrics():
                    self._write(number, Metrics(self._metrics_text()))
                case AskReference() as ask:
                    self._think(number, ask)
                case Hello():
                    raise ConnectionLost("a second Hello")
                case message:
                    while not self._inbox.put(Heard(number, message)):  # noqa: ASYNC110
                        await asyncio.sleep(FULL_S)  # the loop's thread sets no asyncio event

    def _think(self, number: int, ask: AskReference) -> None:
        if self._reference is None:
            self._write(number, Verdict(ask.request, error="this engine computes no references"))
            return
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._thinking, self._reference, ask)

        def tell(done: asyncio.Future[Verdict]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error("a reference could not be computed", exc_info=error)
                self._write(number, Verdict(ask.request, error=f"the reference failed: {error!r}"))
            elif not done.cancelled():
                self._write(number, done.result())

        answer.add_done_callback(tell)

    def _deliver(self) -> None:
        """Hand on what was said, in one write to each gateway.

        A write lets the loop's thread run for a while. With one for every message, messages would
        come faster than they go, and nothing would be read meanwhile.
        """
        mail: defaultdict[int, list[ToGateway]] = defaultdict(list)
        for said in self._outbox.take():
            if isinstance(said.message, Load):
                self._load = said.message
            targets = list(self._peers) if said.connection is None else [said.connection]
            for number in targets:
                mail[number].append(said.message)
        for number, messages in mail.items():
            self._write(number, *messages)

    def _write(self, number: int, *messages: ToGateway) -> None:
        peer = self._peers.get(number)
        if peer is None:
            return  # gone: the loop hears of it, or already has
        last = next((i for i, said in enumerate(messages) if isinstance(said, Goodbye)), None)
        try:
            unread = peer.write(*(messages if last is None else messages[: last + 1]))
        except (ConnectionLost, OSError) as error:
            log.warning("gateway connection %d cannot be written to: %s", number, error)
            unread = self._max_write_buffer + 1
        if unread > self._max_write_buffer:
            log.warning("gateway connection %d is dropped with %d bytes unread", number, unread)
            del self._peers[number]
            peer.abort()
        elif last is not None:
            del self._peers[number]
            peer.end()
