"""Buckets in this process, for one gateway alone. Belongs to one event loop."""

import time
from collections.abc import Callable, Sequence

from gateway.limits.bucket import UNIT, Ask, Bucket, Held, Verdict, refund, wait_ms

SWEEP_EVERY = 4096  # takes between two removals of what has drained
FULL_MS = 60_000  # the longest that a bucket takes to drain
LEASE_MS = 3_600_000  # a lease that nobody settles is forgotten after this


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MemoryBuckets:
    def __init__(self, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._buckets: dict[str, Bucket] = {}
        self._leases: dict[str, tuple[Held, int]] = {}  # and when it was taken
        self._takes = 0

    def holds(self, lease: str) -> bool:
        return lease in self._leases

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        now = self._clock_ms()
        self._sweep(now)
        buckets = [self._bucket(ask, now) for ask in asks]
        waits = [wait_ms(b.level, a.limit, a.cost) for b, a in zip(buckets, asks, strict=True)]
        longest = max(waits)
        if longest > 0:
            return Verdict(longest, waits.index(longest), [bucket.level for bucket in buckets])
        after = [b.plus(a.cost * UNIT) for b, a in zip(buckets, asks, strict=True)]
        self._buckets.update((a.bucket, b) for a, b in zip(asks, after, strict=True) if a.cost > 0)
        if lease is not None:
            last = after[-1]
            self._leases[lease] = (Held(asks[-1].cost, last.gone + last.level, last.born_ms), now)
        return Verdict(0, 0, [bucket.level for bucket in after])

    async def settle(self, ask: Ask, lease: str) -> None:
        held, _ = self._leases.pop(lease, (None, 0))
        if held is not None:
            bucket = self._bucket(ask, self._clock_ms())
            self._buckets[ask.bucket] = bucket.plus(-refund(held, ask.cost, bucket))

    async def close(self) -> None:
        """Nothing is kept anywhere else."""

    def _bucket(self, ask: Ask, now: int) -> Bucket:
        return self._buckets.get(ask.bucket, Bucket()).at(now, ask.limit)

    def _sweep(self, now: int) -> None:
        self._takes += 1
        if self._takes % SWEEP_EVERY:
            return
        full = now - FULL_MS  # whatever was in a bucket then has drained
        self._buckets = {name: b for name, b in self._buckets.items() if b.at_ms > full}
        self._leases = {name: h for name, h in self._leases.items() if h[1] + LEASE_MS > now}
