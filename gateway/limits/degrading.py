"""A shared store that never holds up a request: without it, each gateway counts a share of rates.

Money is not shared out: a budget must not be spent twice. Without the store nothing new is
admitted against one, and what runs ends with the money that it has reserved.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import structs
from redis.exceptions import RedisError

from gateway.errors import QuotaBackendUnavailable
from gateway.limits.memory import MemoryStore
from gateway.limits.store import Ask, Extension, Kind, Open, Purse, Store, Verdict
from gateway.patience import Patience

log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 3  # in a row; from then on the store is asked only every RETRY_S
RETRY_S = 1.0
MOST_STRAYS = 10_000
SURELY_S = 10.0  # until a question that nobody waits for was read, where the store was only slow
Answer = TypeVar("Answer")


class DegradingStore:
    """``replicas`` says how many gateways share the limits, as last known."""

    def __init__(
        self,
        shared: Store,
        *,
        deadline_s: float,
        replicas: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._local = MemoryStore(lambda: int(clock() * 1000))
        self._patience = Patience(deadline_s)
        self._replicas = replicas
        self._clock = clock
        self._failures = 0
        self._retry_at = 0.0
        self._strays: deque[str] = deque(maxlen=MOST_STRAYS)  # perhaps taken, and never used
        self._returned: deque[tuple[float, str]] = deque(maxlen=MOST_STRAYS)  # and once more, when
        self.local_grants = 0  # taken from the local share; for the metrics

    @property
    def degraded(self) -> bool:
        return self._failures > 0

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        asked = not self._resting
        try:
            verdict = await self._ask(self._shared.take(asks, lease))
        except asyncio.CancelledError:
            self._stray(lease)
            raise
        if verdict is not None:
            return verdict
        if asked:
            self._stray(lease)
        if any(ask.kind is Kind.MONEY for ask in asks):
            raise unavailable()
        verdict = await self._local.take([self._share(ask) for ask in asks], lease)
        self.local_grants += verdict.wait_ms == 0
        return verdict

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        return await self._ask(self._shared.extend(asks, lease, held=held)) or Extension(0)

    async def settle(
        self,
        lease: str,
        *,
        tokens: int,
        money: int,
        lost: Sequence[Ask] = (),
        orphan: bool = False,
    ) -> bool:
        if self._local.holds(lease):
            return await self._local.settle(lease, tokens=tokens, money=money)
        settled = self._shared.settle(lease, tokens=tokens, money=money, lost=lost, orphan=orphan)
        return await self._ask(settled) is not None

    async def seed(self, ask: Ask, spent: int, *, known: Collection[str]) -> int:
        return await self._need(self._shared.seed(ask, spent, known=known))

    async def enter(self, ask: Ask, leases: Sequence[Open]) -> None:
        await self._need(_done(self._shared.enter(ask, leases)))

    async def known(self, key: str) -> list[str]:
        return await self._need(self._shared.known(key))

    async def watch(self) -> bool:
        if not self.degraded:
            self._local.sweep()  # nobody takes from it now
        await self._give_back_strays()
        return await self._ask(self._shared.watch()) or False

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        await self._local.renew(leases)
        await self._ask(self._shared.renew(leases))

    async def overdue(self, key: str) -> list[str]:
        return await self._ask(self._shared.overdue(key)) or []

    async def release(self, key: str, lease: str) -> None:
        await self._ask(self._shared.release(key, lease))

    async def purses(self) -> list[Purse]:
        return await self._need(self._shared.purses())

    async def reservations(self, key: str) -> list[Open]:
        return await self._ask(self._shared.reservations(key)) or []

    async def close(self) -> None:
        await self._shared.close()

    def _stray(self, lease: str | None) -> None:
        if lease is not None:
            self._strays.append(lease)

    async def _give_back_strays(self) -> None:
        """A store that answered too late may have taken what it was asked for, or may do so yet:
        a question on a connection that was given up can be read after what came by the next."""
        while self._strays:
            lease = self._strays[0]
            if not await self._give_back(lease):
                return
            self._strays.popleft()
            self._returned.append((self._clock() + SURELY_S, lease))
        while self._returned and self._returned[0][0] <= self._clock():
            if not await self._give_back(self._returned[0][1]):
                return
            self._returned.popleft()

    async def _give_back(self, lease: str) -> bool:
        """Of one that holds nothing, nothing."""
        return await self._ask(_done(self._shared.settle(lease, tokens=0, money=0))) is not None

    async def _need(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        answer = await self._ask(question)
        if answer is None:
            raise unavailable()
        return answer

    @property
    def _resting(self) -> bool:
        return self._failures >= FAILURES_TO_OPEN and self._clock() < self._retry_at

    async def _ask(self, question: Coroutine[Any, Any, Answer]) -> Answer | None:
        """None: no answer."""
        if self._resting:
            question.close()
            return None
        try:
            with self._patience.wait():
                answer = await question
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            self._failed(error)
            return None
        if self._failures:
            log.warning("limit store is back")
        self._failures = 0
        return answer

    def _failed(self, error: Exception) -> None:
        if self._failures == 0:
            log.warning("limit store lost, counting a local share: %s", error or "no answer")
        self._failures += 1
        self._retry_at = self._clock() + RETRY_S

    def _share(self, ask: Ask) -> Ask:
        limit = max(1, ask.limit // max(1, self._replicas()))
        return structs.replace(ask, limit=limit, cost=min(ask.cost, limit))


def unavailable() -> QuotaBackendUnavailable:
    return QuotaBackendUnavailable("Budgets cannot be checked at the moment.", retry_after=RETRY_S)


async def _done(work: Coroutine[Any, Any, Any]) -> bool:
    await work
    return True
