"""One engine as this gateway sees it: its connection, its last Load, and the way back to it.

A connection may outlive what is behind it: a process that is stopped, or a loop that hangs in its
driver, closes nothing. So the engine's loop is asked a question every second; while an answer is
late others are preferred, and one that does not come makes the engine lost.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from engine.address import AddressInvalid
from engine.client import EngineClient, UnequalVersions
from engine.protocol import Load, Submit, Welcome
from engine.stream import EngineLost, Stream
from engine.tls import NO_CREDENTIALS, Credentials

FIRST_PAUSE = 0.05  # seconds before the second attempt to connect; doubles each time
LONGEST_PAUSE = 2.0
HEALTHY = 5.0  # a connection that lasted this many seconds starts the pauses anew
ASK_S = 1.0  # between two questions
LATE = 0.1  # share of the longest silence after which an answer is late
SILENCE_S = 30.0  # longest silence; on a CPU a pass of many prompt tokens may take seconds
QUESTION = "alive"  # no request is called so
NOBODY: AbstractSet[str] = frozenset()

log = logging.getLogger(__name__)


class Member:
    """Belongs to one event loop. ``run`` keeps it connected until cancelled."""

    def __init__(
        self,
        address: str,
        *,
        gateway: str,
        silence_s: float = SILENCE_S,
        credentials: Credentials = NO_CREDENTIALS,
        arrived: Callable[["Member"], None] = lambda member: None,
    ) -> None:
        """``arrived`` is called whenever it is connected, before anything is sent to it."""
        self.name = address
        self.reason = "not connected yet"  # why it cannot be used; "" where it can
        self.unfit = ""  # the same, where trying again will not help
        self._gateway, self._credentials = gateway, credentials
        self._silence_s, self._arrived = silence_s, arrived
        self._client: EngineClient | None = None
        self._asked_at: float | None = None  # of the question that is open
        self._resident: tuple[Load | None, AbstractSet[str]] = (None, NOBODY)

    @property
    def client(self) -> EngineClient | None:
        """None while the engine cannot be reached or has left."""
        client = self._client
        return client if client and client.lost is None and client.goodbye is None else None

    @property
    def usable(self) -> bool:
        """It takes new requests, and answers."""
        return self.takes and not self.late

    @property
    def takes(self) -> bool:
        client = self.client
        return client is not None and not (client.load and client.load.draining)

    @property
    def draining(self) -> bool:
        load = self.last_load
        return load is not None and load.draining

    @property
    def late(self) -> bool:
        """Its loop has not answered for a while."""
        asked = self._asked_at
        return asked is not None and time.monotonic() - asked > LATE * self._silence_s

    @property
    def welcome(self) -> Welcome | None:
        return self.client.welcome if self.client else None

    @property
    def last_load(self) -> Load | None:
        return self.client.load if self.client else None

    @property
    def load(self) -> float:
        """Requests that are open, also of others, over those it runs at a time: 1.0 is full, and
        beyond it they wait."""
        client = self.client
        if client is None:
            return 1.0
        told = client.load
        busy = max(client.open, told.running + told.waiting if told else 0)
        return busy * self.share

    @property
    def share(self) -> float:
        """Of its load that one more request makes."""
        if self._client is None:
            return 1.0
        welcome = self._client.welcome
        return 1 / max(welcome.seats or welcome.credits, 1)

    @property
    def resident(self) -> AbstractSet[str]:
        load = self.last_load
        if self._resident[0] is not load:
            self._resident = (load, frozenset(load.resident) if load else NOBODY)
        return self._resident[1]

    def generate(self, submit: Submit) -> Stream:
        """Raises EngineLost when it has just gone."""
        client = self.client
        if client is None:
            raise EngineLost(f"{self.name} is not connected")
        return client.generate(submit)

    async def run(self) -> None:
        """Connect, and connect again whenever the connection ends."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                client = await EngineClient.connect(
                    self.name, gateway=self._gateway, credentials=self._credentials
                )
                async with client:
                    await self._use(client)
            except (EngineLost, AddressInvalid) as error:
                self.unfit = str(error) if isinstance(error, UnequalVersions) else ""
                self._missing(str(error).removeprefix(f"{self.name}: "))
            if time.monotonic() - began >= HEALTHY:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _use(self, client: EngineClient) -> None:
        """Until the connection ends. Raises EngineLost with the reason."""
        self._client, self._asked_at = client, None
        self.reason = self.unfit = ""
        self._arrived(self)
        asking = asyncio.create_task(self._ask(client), name=f"alive {self.name}")
        try:
            raise await client.wait_lost()
        finally:
            asking.cancel()

    async def _ask(self, client: EngineClient) -> None:
        while client.lost is None:
            self._asked_at = time.monotonic()
            try:
                await client.counts([QUESTION], timeout_s=self._silence_s)
            except EngineLost:
                return
            except TimeoutError:
                client.give_up(f"its loop was silent for {self._silence_s:g} s")
                return
            self._asked_at = None
            await asyncio.sleep(ASK_S)

    def _missing(self, reason: str) -> None:
        """Said once: it is tried again and again."""
        client = self._client
        if client is not None and client.goodbye is not None:
            reason = f"it left: {client.goodbye}"
        if reason != self.reason:
            log.warning("engine %s: %s", self.name, reason)
        self.reason = reason
