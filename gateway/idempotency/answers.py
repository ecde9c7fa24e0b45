"""Answers that are kept for a while under the keys that clients gave their requests.

One request at a time has a key: it *claims* it, and keeps its answer under it or releases it. A
key belongs to a project. What is kept is bounded in time, and for each project in number; an
answer too large to keep leaves word that it was given, so that it is never given, and paid, twice.
"""

import asyncio
import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from time import monotonic
from typing import Protocol
from uuid import uuid4

from gateway.errors import IdempotencyKeyBusy, IdempotencyKeyReused

KEEP_S = 24 * 3600
CLAIM_S = 45  # a claim that nobody renews is free after this: its gateway died
RENEW_S = 15.0
MOST_ANSWERS = 500  # of one project; the oldest go first
MOST_ANSWER_BYTES = 256 << 10  # compressed
MOST_BYTES = 64 << 20  # in a gateway's memory, of all projects
ENTRY_BYTES = 1 << 10  # of that, what a key takes beside its answer
SWEEP_S = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A complete answer. ``packed`` of None: it was given, but was too large to keep."""

    kind: str  # content type
    packed: bytes | None

    @classmethod
    def of(cls, kind: str, body: bytes) -> "Kept":
        packed = zlib.compress(body, 1)
        return cls(kind, packed if len(packed) <= MOST_ANSWER_BYTES else None)

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed or b"")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to give the answer for a key."""

    organisation: str
    project: str
    name: str  # of the key: its hash, for clients write what they like
    request: str  # hash of what is asked
    owner: str = field(default_factory=lambda: uuid4().hex)


def claim_of(organisation: str, project: str, key: bytes, request: bytes) -> Claim:
    return Claim(
        organisation, project, hashlib.sha256(key).hexdigest(), hashlib.sha256(request).hexdigest()
    )


class Answers(Protocol):
    """Belongs to one event loop."""

    async def claim(self, claim: Claim) -> Kept | None:
        """The answer that is there; None: the key is now the claim's.

        Raises IdempotencyKeyReused, IdempotencyKeyBusy, IdempotencyUnavailable.
        """

    async def keep(self, claim: Claim, answer: Kept) -> None: ...

    async def release(self, claim: Claim) -> None:
        """The key is free again. Nothing happens where its answer is kept."""

    async def run(self) -> None:
        """Hold the claims of what runs, for ever."""


@dataclass(slots=True)
class _Entry:
    claim: Claim
    at: float
    answer: Kept | None = None

    @property
    def size(self) -> int:
        return ENTRY_BYTES + (len(self.answer.packed or b"") if self.answer else 0)


class _Shelf(OrderedDict[str, _Entry]):
    """Of one project; longest ago first."""

    size = 0

    def put(self, name: str, entry: _Entry) -> None:
        self[name] = entry
        self.size += entry.size

    def drop(self, name: str) -> int:
        """Returns how many bytes it took."""
        size = self.pop(name).size
        self.size -= size
        return size

    def drop_first(self) -> int:
        """The oldest with an answer; if there is none, the oldest."""
        return self.drop(next((n for n, each in self.items() if each.answer), next(iter(self))))

    def drop_old(self, late: float) -> int:
        old = list(takewhile(lambda name: self[name].at <= late, self))
        return sum(map(self.drop, old))


class MemoryAnswers:
    """For one gateway alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}  # by project
        self._size = 0

    @property
    def kept(self) -> int:
        """Keys that are known."""
        return sum(map(len, self._shelves.values()))

    async def claim(self, claim: Claim) -> Kept | None:
        shelf = self._shelves.setdefault(claim.project, _Shelf())
        self._size -= shelf.drop_old(self._clock() - KEEP_S)
        if (entry := shelf.get(claim.name)) is not None:
            return found(entry.claim.request, claim, entry.answer)
        shelf.put(claim.name, _Entry(claim, self._clock()))
        self._size += ENTRY_BYTES
        if len(shelf) > MOST_ANSWERS:
            self._size -= shelf.drop_first()
        self._shrink()
        return None

    async def keep(self, claim: Claim, answer: Kept) -> None:
        shelf, entry = self._mine(claim)
        if entry is not None:
            before, entry.answer = entry.size, answer
            shelf.size += entry.size - before
            self._size += entry.size - before
            self._shrink()

    async def release(self, claim: Claim) -> None:
        shelf, entry = self._mine(claim)
        if entry is not None and entry.answer is None:
            self._size -= shelf.drop(claim.name)

    async def run(self) -> None:
        """Claims end with the process; what projects that ask no more have is dropped in time."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        late = self._clock() - KEEP_S
        self._size -= sum(shelf.drop_old(late) for shelf in self._shelves.values())
        self._shelves = {name: shelf for name, shelf in self._shelves.items() if shelf}

    def _mine(self, claim: Claim) -> tuple[_Shelf, _Entry | None]:
        shelf = self._shelves.get(claim.project, _Shelf())
        entry = shelf.get(claim.name)
        return shelf, entry if entry is not None and entry.claim.owner == claim.owner else None

    def _shrink(self) -> None:
        """Of whoever has most; more than must go, for all shelves are looked at."""
        if self._size <= MOST_BYTES:
            return
        while self._size > MOST_BYTES - MOST_BYTES // 16:
            largest = max(self._shelves.values(), key=lambda shelf: shelf.size)
            self._size -= largest.drop_first()


def found(request: str, claim: Claim, answer: Kept | None) -> Kept:
    """What a key that was there already means for the one who asks now.

    Raises IdempotencyKeyBusy or IdempotencyKeyReused.
    """
    if request != claim.request:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used with another request.", param="Idempotency-Key"
        )
    if answer is None:
        raise IdempotencyKeyBusy(
            "A request with this Idempotency-Key is under way.",
            param="Idempotency-Key",
            retry_after=1.0,
        )
    return answer
