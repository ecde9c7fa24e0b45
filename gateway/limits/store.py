"""What is asked of a place that counts, whether it is this process or Redis.

One call takes everything that is asked, or nothing. A lease names what was taken: it holds the
exact counters, so that settling meets them in the period in which they were taken, and once.

Four kinds of counters: a rate (see bucket.py), a count within a calendar period, money within a
period, and slots, which are held for a while and fall free by themselves.

A counter of money is derived from the ledger: one that a store does not know, or that is of an
older version, is *unseeded* and answers nothing until it is seeded (``seeding.py``).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

LEASE_MS = 3_600_000  # a lease that nobody settles is forgotten after this
LATE_MS = 2 * LEASE_MS  # a counter outlives its period by this, for requests that end late
SLOT_MS = 60_000  # a slot that nobody renews falls free after this
RENEW_S = 15.0
READ_AGAIN = -1
BUSY_MS = 1_000  # what to wait for a slot, or for money that is only reserved: nobody knows


class Kind(StrEnum):
    RATE = "r"
    COUNT = "c"
    MONEY = "m"
    SLOTS = "s"


class Unit(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrent requests"
    MONEY = "money"


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What one request wants of one counter. A cost of 0 only looks.

    A request makes a dozen: a struct takes a tenth of a frozen dataclass's time.
    """

    key: str  # full name of the counter, its period included
    kind: Kind
    unit: Unit
    limit: int  # a minute; a period; at once
    cost: int
    least: int = 0  # of money: less than ``cost`` is taken where no more is left
    ends_ms: int = 0  # of the period, unix; 0: it has none
    soft: bool = False  # of money: what runs may finish, over the limit
    version: int = 0  # of money: a counter of an older one must be read from the ledger again


class Verdict(msgspec.Struct, frozen=True):
    """All asks were granted (``wait_ms`` is 0), or none."""

    wait_ms: int  # until the binding ask would pass, if nobody else takes
    binding: int  # index of the ask that has to wait longest
    levels: list[int]  # of each counter, after taking; of money what was spent
    held: list[int]  # of money: reserved by open requests, this one included; else 0
    money: int = 0  # nano-dollars that were reserved, of each budget
    unseeded: Sequence[int] = ()  # money whose spending is not known here


@dataclass(frozen=True, slots=True)
class Extension:
    """More money for a running request: ``money`` is 0 where there is none."""

    money: int
    binding: int = 0  # index of the ask that had the least left
    unseeded: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """A reservation that is not settled."""

    lease: str
    nano: int


@dataclass(frozen=True, slots=True)
class Purse:
    """A counter of money as it stands. ``spent`` of None: unseeded."""

    key: str
    spent: int | None
    held: int
    open: tuple[Open, ...]
    version: int = 0


class Store(Protocol):
    """Belongs to one event loop."""

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        """``lease`` of None only looks."""

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        """More of the same money: asks of money alone. ``held``: what the lease holds already."""

    async def settle(
        self,
        lease: str,
        *,
        tokens: int,
        money: int,
        lost: Sequence[Ask] = (),
        orphan: bool = False,
    ) -> bool:
        """So much was used in truth; what else the lease holds goes back, once.

        ``lost``: asks of money to charge where the store has forgotten the lease; of an
        ``orphan``, whose gateway died, only those that still know a reservation of it.
        False: the store is away, and should be told again.
        """

    async def seed(self, ask: Ask, spent: int, *, known: Collection[str]) -> int:
        """What the ledger says was spent, the leases ``known`` left out.

        0: the counter is there; READ_AGAIN: others have come to it since ``known`` was read; else
        how many milliseconds it is too early, for some gateway may not have said all it knows.
        """

    async def enter(self, ask: Ask, leases: Sequence[Open]) -> None:
        """Reservations that the store may have forgotten."""

    async def known(self, key: str) -> list[str]:
        """Leases that a budget's counter has, or will have, in it by their own numbers."""

    async def watch(self) -> bool:
        """Whether the store has lost everything since it was asked last."""

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Hold slots (their counters) of these leases a while longer."""

    async def overdue(self, key: str) -> list[str]:
        """Leases in this budget that nobody settled in time."""

    async def release(self, key: str, lease: str) -> None:
        """An overdue lease holds nothing from here on, but may still be charged."""

    async def purses(self) -> list[Purse]:
        """Every counter of money."""

    async def reservations(self, key: str) -> list[Open]:
        """Open reservations of one budget."""

    async def close(self) -> None: ...
