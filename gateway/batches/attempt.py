"""One attempt at a line: what it did is kept back until its answer is written, or thrown away.

It stands where a live request has its recorder and its limiter. Beginnings, ends and settlements
wait here; the line's answer and its bill are written in one transaction, and only then does the
reservation settle. An attempt that is thrown away costs its project nothing.
"""

from gateway.identity.principal import Principal
from gateway.limits.lease import Demand, Headroom, Lease, Limiter, More
from gateway.limits.limiter import ANY_USE
from gateway.limits.rules import Use
from gateway.usage.record import Finished, Started


class Attempt:
    """A ``Recorder`` and a ``Limiter`` for one attempt. ``keep`` or ``discard`` it, once."""

    def __init__(self, limiter: Limiter, name: str) -> None:
        """``name``: of this attempt alone, so that the one before may still hold something."""
        self._limiter, self._name = limiter, name
        self._owed: list[tuple[Lease, int, int]] = []
        self.begun: Started | None = None
        self.ended: Finished | None = None

    async def started(self, record: Started) -> None:
        self.begun = record

    async def finished(self, record: Finished) -> None:
        self.ended = record

    async def reserve(
        self,
        principal: Principal,
        request: str,
        tokens: int,
        *,
        use: Use = ANY_USE,
        demand: Demand | None = None,
    ) -> Lease:
        return await self._limiter.reserve(principal, self._name, tokens, use=use, demand=demand)

    async def extend(self, lease: Lease, *, held: int, want: int, least: int) -> More:
        return await self._limiter.extend(lease, held=held, want=want, least=least)

    async def settle(self, lease: Lease, used: int, nano: int = 0) -> None:
        self._owed.append((lease, used, nano))

    async def headroom(self, principal: Principal, use: Use = ANY_USE) -> Headroom:
        return await self._limiter.headroom(principal, use)

    def tokens_within(self, principal: Principal, use: Use = ANY_USE) -> int | None:
        return self._limiter.tokens_within(principal, use)

    async def close(self) -> None:
        """The limiter is not its own."""

    async def keep(self) -> None:
        for lease, used, nano in self._owed:
            await self._limiter.settle(lease, used, nano)

    async def discard(self) -> None:
        for lease, _, _ in self._owed:
            await self._limiter.settle(lease, 0, 0)
