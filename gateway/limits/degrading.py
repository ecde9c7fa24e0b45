"""Shared buckets that never hold up a request: without their store, each gateway counts a share.

Rates only. A hard budget must not be spent twice, so money will fail closed instead.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from gateway.limits.bucket import Ask, BucketStore, Verdict
from gateway.limits.memory import MemoryBuckets

log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 3  # in a row; from then on the store is asked only every RETRY_S
RETRY_S = 1.0


class DegradingBuckets:
    """``replicas`` says how many gateways share the limits, as last known."""

    def __init__(
        self,
        shared: BucketStore,
        *,
        deadline_s: float,
        replicas: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._local = MemoryBuckets(lambda: int(clock() * 1000))
        self._deadline_s = deadline_s
        self._replicas = replicas
        self._clock = clock
        self._failures = 0
        self._retry_at = 0.0
        self.local_grants = 0  # taken from the local share; for the metrics

    @property
    def degraded(self) -> bool:
        return self._failures > 0

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        if self._may_ask():
            try:
                async with asyncio.timeout(self._deadline_s):
                    verdict = await self._shared.take(asks, lease)
            except (RedisError, OSError) as error:  # TimeoutError is an OSError
                self._failed(error)
            else:
                self._worked()
                return verdict
        verdict = await self._local.take([self._share(ask) for ask in asks], lease)
        self.local_grants += verdict.wait_ms == 0
        return verdict

    async def settle(self, ask: Ask, lease: str) -> None:
        if self._local.holds(lease):
            await self._local.settle(self._share(ask), lease)
        elif self._may_ask():
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._shared.settle(ask, lease)
            except (RedisError, OSError) as error:  # the reservation drains by itself
                self._failed(error)
            else:
                self._worked()

    async def close(self) -> None:
        await self._shared.close()

    def _may_ask(self) -> bool:
        return self._failures < FAILURES_TO_OPEN or self._clock() >= self._retry_at

    def _failed(self, error: Exception) -> None:
        if self._failures == 0:
            log.warning("limit store lost, counting a local share: %s", error or "no answer")
        self._failures += 1
        self._retry_at = self._clock() + RETRY_S

    def _worked(self) -> None:
        if self._failures:
            log.warning("limit store is back")
        self._failures = 0

    def _share(self, ask: Ask) -> Ask:
        limit = max(1, ask.limit // max(1, self._replicas()))
        return replace(ask, limit=limit, cost=min(ask.cost, limit))
