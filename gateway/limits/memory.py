"""Counters in this process, for one gateway alone. Belongs to one event loop."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gateway.limits.bucket import UNIT, Bucket, Held, refund, wait_ms
from gateway.limits.store import (
    BUSY_MS,
    LATE_MS,
    LEASE_MS,
    READ_AGAIN,
    SLOT_MS,
    Ask,
    Extension,
    Kind,
    Open,
    Purse,
    Unit,
    Verdict,
)

SWEEP_EVERY = 4096  # takes between two removals of what is over
FULL_MS = 60_000  # the longest that a bucket takes to drain


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class _Count:
    used: int = 0
    ends_ms: int = 0


@dataclass(slots=True)
class _Purse:
    ends_ms: int
    spent: int | None = None  # None: the ledger is to be read
    version: int = 0
    held: int = 0
    open: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # settled while it was unseeded


@dataclass(slots=True)
class _Lease:
    at_ms: int
    asks: list[Ask]
    buckets: dict[str, Held] = field(default_factory=dict)


class MemoryStore:
    """``clock_ms`` drains buckets and never steps back; ``wall_ms`` ends periods."""

    def __init__(
        self,
        clock_ms: Callable[[], int] = monotonic_ms,
        wall_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._clock_ms, self._wall_ms = clock_ms, wall_ms
        self._buckets: dict[str, Bucket] = {}
        self._counts: dict[str, _Count] = {}
        self._purses: dict[str, _Purse] = {}
        self._slots: dict[str, dict[str, int]] = {}  # counter -> lease -> when it falls free
        self._leases: dict[str, _Lease] = {}
        self._takes = 0

    def holds(self, lease: str) -> bool:
        return lease in self._leases

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        now = self._clock_ms()
        self._takes += 1
        if self._takes % SWEEP_EVERY == 0:
            self.sweep()
        unseeded = [i for i, a in enumerate(asks) if a.kind is Kind.MONEY and self._is_unseeded(a)]
        if unseeded:
            return Verdict(0, 0, [], [], unseeded=unseeded)
        money = self._affordable(asks)
        waits = [self._wait(ask, now, money) for ask in asks]
        longest = max(waits, default=0)
        if longest == 0 and lease is not None:
            self._enter(asks, lease, now, money)
        return Verdict(
            longest,
            waits.index(longest) if longest else 0,
            [self._level(ask, now) for ask in asks],
            [self._purses[a.key].held if a.kind is Kind.MONEY else 0 for a in asks],
            money,
        )

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        if any(self._is_unseeded(ask) for ask in asks):
            return Extension(0, unseeded=True)
        missing = [0 if lease in self._purses[ask.key].open else held for ask in asks]
        rooms = [
            ask.cost if ask.soft else self._room(ask) - gap
            for ask, gap in zip(asks, missing, strict=True)
        ]
        least = min(rooms)
        money = min(asks[0].cost, least)
        if money < asks[0].least:
            return Extension(0, rooms.index(least))
        for ask, gap in zip(asks, missing, strict=True):
            self._hold(ask.key, lease, money + gap)
        return Extension(money)

    async def settle(
        self,
        lease: str,
        *,
        tokens: int,
        money: int,
        lost: Sequence[Ask] = (),
        orphan: bool = False,
    ) -> bool:
        entry = self._leases.pop(lease, None)
        if entry is None:
            for ask in lost:
                self._charge(ask.key, lease, money, always=not orphan)
            return True
        for ask in entry.asks:
            self._give_back(ask, lease, entry, tokens=tokens, money=money)
        return True

    async def seed(self, ask: Ask, spent: int, *, known: Collection[str]) -> int:
        purse = self._purses.setdefault(ask.key, _Purse(ask.ends_ms))
        if purse.spent is None:
            if not (purse.open.keys() | purse.done.keys()) <= set(known):
                return READ_AGAIN
            purse.spent, purse.version = spent + sum(purse.done.values()), ask.version
            purse.done.clear()
        return 0

    async def enter(self, ask: Ask, leases: Sequence[Open]) -> None:
        purse = self._purses.setdefault(ask.key, _Purse(ask.ends_ms))
        for each in leases:
            if each.lease not in purse.open and each.lease not in purse.done:
                self._hold(ask.key, each.lease, each.nano)

    async def known(self, key: str) -> list[str]:
        purse = self._purses.get(key)
        return [*purse.open, *purse.done] if purse else []

    async def watch(self) -> bool:
        return False

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        until = self._clock_ms() + SLOT_MS
        for lease, keys in leases:
            for key in keys:
                if lease in self._slots.get(key, {}):
                    self._slots[key][lease] = until

    async def overdue(self, key: str) -> list[str]:
        return []  # who could settle them shares our fate

    async def release(self, key: str, lease: str) -> None:
        """Nothing is overdue."""

    async def purses(self) -> list[Purse]:
        return [
            Purse(key, p.spent, p.held, tuple(Open(*entry) for entry in p.open.items()), p.version)
            for key, p in self._purses.items()
        ]

    async def reservations(self, key: str) -> list[Open]:
        purse = self._purses.get(key)
        return [Open(*entry) for entry in purse.open.items()] if purse else []

    async def close(self) -> None:
        """Nothing is kept anywhere else."""

    def _affordable(self, asks: Sequence[Ask]) -> int:
        """Of what is wanted, as much as every budget has left."""
        purses = [ask for ask in asks if ask.kind is Kind.MONEY]
        return max(0, min((min(ask.cost, self._room(ask)) for ask in purses), default=0))

    def _is_unseeded(self, ask: Ask) -> bool:
        purse = self._purses.get(ask.key)
        if purse is not None and purse.version < ask.version:
            purse.spent = None
        return purse is None or purse.spent is None

    def _room(self, ask: Ask) -> int:
        return ask.limit - self._spent(ask.key) - self._purses[ask.key].held

    def _spent(self, key: str) -> int:
        spent = self._purses[key].spent
        assert spent is not None, "nobody looks into an unseeded budget"
        return spent

    def _wait(self, ask: Ask, now: int, money: int) -> int:
        """Milliseconds until this ask would pass; 0: it does."""
        if ask.cost == 0:
            return 0
        if ask.kind is Kind.RATE:
            return wait_ms(self._bucket(ask, now).level, ask.limit, ask.cost)
        if ask.kind is Kind.COUNT:
            over = self._level(ask, now) + ask.cost > ask.limit
            return max(1, ask.ends_ms - self._wall_ms()) if over else 0
        if ask.kind is Kind.SLOTS:
            return BUSY_MS if self._level(ask, now) >= ask.limit else 0
        if money >= ask.least or self._room(ask) >= ask.least:
            return 0
        only_reserved = self._spent(ask.key) + ask.least <= ask.limit
        return BUSY_MS if only_reserved else max(1, ask.ends_ms - self._wall_ms())

    def _level(self, ask: Ask, now: int) -> int:
        if ask.kind is Kind.RATE:
            return self._bucket(ask, now).level
        if ask.kind is Kind.COUNT:
            count = self._counts.get(ask.key)
            return count.used if count else 0
        if ask.kind is Kind.MONEY:
            return self._spent(ask.key)
        slots = self._slots.get(ask.key, {})
        for lease in [lease for lease, until in slots.items() if until <= now]:
            del slots[lease]
        return len(slots)

    def _enter(self, asks: Sequence[Ask], lease: str, now: int, money: int) -> None:
        entry = self._leases[lease] = _Lease(now, [ask for ask in asks if ask.cost])
        for ask in entry.asks:
            if ask.kind is Kind.RATE:
                after = self._bucket(ask, now).plus(ask.cost * UNIT)
                self._buckets[ask.key] = after
                entry.buckets[ask.key] = Held(ask.cost, after.gone + after.level, after.born_ms)
            elif ask.kind is Kind.COUNT:
                self._counts.setdefault(ask.key, _Count(0, ask.ends_ms)).used += ask.cost
            elif ask.kind is Kind.SLOTS:
                self._slots.setdefault(ask.key, {})[lease] = now + SLOT_MS
            else:
                self._hold(ask.key, lease, money)

    def _hold(self, key: str, lease: str, money: int) -> None:
        purse = self._purses[key]
        purse.held += money
        purse.open[lease] = purse.open.get(lease, 0) + money

    def _charge(self, key: str, lease: str, money: int, *, always: bool = True) -> None:
        purse = self._purses.get(key)
        if purse is None or not (always or lease in purse.open):
            return
        reserved = lease in purse.open
        purse.held -= purse.open.pop(lease, 0)
        if purse.spent is not None:
            purse.spent += money
        elif reserved:  # else the ledger says it, when it is read
            purse.done[lease] = money

    def _give_back(self, ask: Ask, lease: str, entry: _Lease, *, tokens: int, money: int) -> None:
        if ask.kind is Kind.MONEY:
            self._charge(ask.key, lease, money)
        elif ask.kind is Kind.SLOTS:
            self._slots.get(ask.key, {}).pop(lease, None)
        elif ask.kind is Kind.COUNT and ask.unit is Unit.TOKENS:
            if count := self._counts.get(ask.key):
                count.used = max(0, count.used - ask.cost + tokens)
        elif ask.kind is Kind.RATE and ask.unit is Unit.TOKENS:
            bucket = self._bucket(ask, self._clock_ms())
            back = refund(entry.buckets[ask.key], tokens, bucket)
            self._buckets[ask.key] = bucket.plus(-back)

    def _bucket(self, ask: Ask, now: int) -> Bucket:
        return self._buckets.get(ask.key, Bucket()).at(now, ask.limit)

    def sweep(self) -> None:
        """What is over takes no memory."""
        now = self._clock_ms()
        full, late = now - FULL_MS, self._wall_ms() - LATE_MS
        self._buckets = {name: b for name, b in self._buckets.items() if b.at_ms > full}
        self._counts = {name: c for name, c in self._counts.items() if c.ends_ms > late}
        self._purses = {
            name: p for name, p in self._purses.items() if p.open or not 0 < p.ends_ms <= late
        }
        self._slots = {name: slots for name, slots in self._slots.items() if slots}
        for lease in [name for name, e in self._leases.items() if e.at_ms + LEASE_MS <= now]:
            self._forget(lease)

    def _forget(self, lease: str) -> None:
        """Nobody settled it: the ledger says what it used, if it used anything."""
        for ask in self._leases.pop(lease).asks:
            if ask.kind is Kind.MONEY and (purse := self._purses.get(ask.key)):
                purse.held -= purse.open.pop(lease, 0)
