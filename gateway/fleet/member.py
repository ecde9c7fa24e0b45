"""One engine as this gateway sees it: its connection, its last Load, and the way back to it."""

import asyncio
import time
from collections.abc import Set as AbstractSet

from engine.client import EngineClient, EngineLost, Stream
from engine.protocol import Load, Submit, Welcome
from engine.tls import NO_CREDENTIALS, Credentials

FIRST_PAUSE = 0.05  # seconds before the second attempt to connect; doubles each time
LONGEST_PAUSE = 2.0
HEALTHY = 5.0  # a connection that lasted this many seconds starts the pauses anew


class Member:
    """Belongs to one event loop. ``run`` keeps it connected until cancelled."""

    def __init__(
        self, address: str, *, gateway: str, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.name = address
        self._gateway, self._credentials = gateway, credentials
        self._client: EngineClient | None = None
        self._resident: tuple[Load | None, frozenset[str]] = (None, frozenset())

    @property
    def client(self) -> EngineClient | None:
        """None while the engine cannot be reached or is leaving."""
        client = self._client
        return client if client and client.lost is None and client.goodbye is None else None

    @property
    def welcome(self) -> Welcome | None:
        return self.client.welcome if self.client else None

    @property
    def last_load(self) -> Load | None:
        return self.client.load if self.client else None

    @property
    def load(self) -> float:
        """Share of the requests it allows us that are open; what others brought counts too."""
        client = self.client
        if client is None:
            return 1.0
        told = client.load
        busy = max(client.open, told.running + told.waiting if told else 0)
        return min(busy / max(client.welcome.credits, 1), 1.0)

    @property
    def resident(self) -> AbstractSet[str]:
        load = self.last_load
        if self._resident[0] is not load:
            self._resident = (load, frozenset(load.resident if load else ()))
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
                self._client = await EngineClient.connect(
                    self.name, gateway=self._gateway, credentials=self._credentials
                )
                async with self._client:
                    await self._client.wait_lost()
            except EngineLost:
                pass  # the next attempt says whether it is back; /readyz says that it is gone
            if time.monotonic() - began >= HEALTHY:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
