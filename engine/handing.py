"""A gateway's end of a handoff: one request, told to two engines.

    handing = Handing(giver, taker, submit)
    async with taker.generate(handing.submit) as stream, handing:
        async for output in stream:  # of the taker alone
            ...

Whatever becomes of the giver, the taker answers: if the giver will not do its part, it is told to
forgo it. Imports no torch. Everything here belongs to one event loop.
"""

import asyncio
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from engine.client import EngineClient
from engine.protocol import Finish, Forgo, Submit, Ticket
from engine.stream import EngineLost, RequestRefused

SECRET_BYTES = 32
SEED_BITS = 63
GOOD = frozenset({Finish.LENGTH, Finish.STOP})


class Handing:
    """Enter it once the taker was told ``submit``, leave it with the taker's stream."""

    def __init__(
        self,
        giver: EngineClient,
        taker: EngineClient,
        submit: Submit,
        *,
        given: Callable[[], None] = lambda: None,
    ) -> None:
        """``given`` is called once, when the giver has nothing more to do."""
        self._giver, self._taker, self._told = giver, taker, given
        sampling = submit.sampling
        if sampling.seed is None:  # both draw the first token
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(SEED_BITS))
        ticket = Ticket(secrets.token_hex(16), secrets.token_bytes(SECRET_BYTES))
        self.submit = msgspec.structs.replace(submit, sampling=sampling, ticket=ticket)
        self._given = msgspec.structs.replace(
            self.submit,
            request=f"{submit.request}/{ticket.name}",  # tried again it is another
            ticket=msgspec.structs.replace(ticket, to=taker.welcome.takes),
            n=1,
            max_tokens=1,
            granted=None,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._give(), name=f"handoff {self.submit.request}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.over()

    def over(self) -> None:
        """The giver has nothing more to do; also where it was never entered. Idempotent."""
        given, self._told = self._told, lambda: None
        given()

    async def _give(self) -> None:
        gave = await self._gave()
        self.over()
        if not gave:
            self._taker.tell(Forgo(self.submit.request))

    async def _gave(self) -> bool:
        """Whether the giver says that all pages have left."""
        try:
            async with self._giver.generate(self._given) as stream:
                while outputs := await stream.batch():
                    if any(output.finish in GOOD for output in outputs):
                        return True
        except (EngineLost, RequestRefused):
            pass
        return False


class GiverQueues:
    """Prompt tokens that each giver has yet to compute for us, by its name."""

    def __init__(self, most: int) -> None:
        """``most``: a giver that has more to do is not free, unless it has nothing."""
        self._most, self._open = most, dict[str, int]()

    def free(self, giver: str, tokens: int) -> bool:
        waiting = self._open.get(giver, 0)
        return waiting == 0 or waiting + tokens <= self._most

    def waiting(self, giver: str) -> int:
        return self._open.get(giver, 0)

    def add(self, giver: str, tokens: int) -> None:
        self._open[giver] = self._open.get(giver, 0) + tokens

    def remove(self, giver: str, tokens: int) -> None:
        self._open[giver] -= tokens
        if not self._open[giver]:
            del self._open[giver]
