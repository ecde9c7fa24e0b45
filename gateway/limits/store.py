"""What is asked of a place that counts, whether it is this process or Redis.

One call takes everything that is asked, or nothing. A lease names what was taken: it holds the
exact counters, so that settling meets them in the period in which they were taken, and once.

Four kinds of counters: a rate (see bucket.py), a count within a calendar period, money within a
period, and slots, which are held for a while and fall free by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

LEASE_MS = 3_600_000  # a lease that nobody settles is forgotten after this
SLOT_MS = 60_000  # a slot that nobody renews falls free after this
RENEW_S = 15.0
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


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants of one counter. A cost of 0 only looks."""

    key: str  # full name of the counter, its period included
    kind: Kind
    unit: Unit
    limit: int  # a minute; a period; at once
    cost: int
    least: int = 0  # of money: less than ``cost`` is taken where no more is left
    ends_ms: int = 0  # of the period, unix; 0: it has none
    soft: bool = False  # of money: what runs may finish, over the limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """All asks were granted (``wait_ms`` is 0), or none."""

    wait_ms: int  # until the binding ask would pass, if nobody else takes
    binding: int  # index of the ask that has to wait longest
    levels: list[int]  # of each counter, after taking; of money what was spent
    held: list[int]  # of money: reserved by open requests, this one included; else 0
    money: int = 0  # nano-dollars that were reserved, of each budget
    unseeded: list[int] = field(default_factory=list)  # money whose spending is not known here


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


class Store(Protocol):
    """Belongs to one event loop."""

    async def take(self, asks: Sequence[Ask], lease: str | None) -> Verdict:
        """``lease`` of None only looks."""

    async def extend(self, asks: Sequence[Ask], lease: str, *, held: int) -> Extension:
        """More of the same money: asks of money alone. ``held``: what the lease holds already."""

    async def settle(
        self, lease: str, *, tokens: int, money: int, lost: Sequence[Ask] = ()
    ) -> bool:
        """So much was used in truth; what else the lease holds goes back, once.

        False: the store is away, and should be told again.

        ``lost``: asks of money to charge where the store has forgotten the lease.
        """

    async def seed(self, ask: Ask, spent: int) -> None:
        """What the ledger says was spent; ignored where it is known already."""

    async def renew(self, leases: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Hold slots (their counters) of these leases a while longer."""

    async def prune(self, keys: Sequence[str]) -> None:
        """Forget reservations in these budgets that nobody settled."""

    async def reservations(self, key: str) -> list[Open]:
        """Open reservations of one budget."""

    async def close(self) -> None: ...
