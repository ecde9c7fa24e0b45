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
        return len(self.answer.packed or b"") if self.answer else 0


class MemoryAnswers:
    """For one gateway alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._projects: dict[str, OrderedDict[str, _Entry]] = {}
        self._bytes = 0

    async def claim(self, claim: Claim) -> Kept | None:
        entries = self._projects.setdefault(claim.project, OrderedDict())
        self._drop_old(entries)
        if (entry := entries.get(claim.name)) is not None:
            return found(entry.claim.request, claim, entry.answer)
        entries[claim.name] = _Entry(claim, self._clock())
        if len(entries) > MOST_ANSWERS:
            self._drop_first(entries)
        return None

    async def keep(self, claim: Claim, answer: Kept) -> None:
        entry = self._mine(claim)
        if entry is not None:
            entry.answer = answer
            self._bytes += entry.size
            while self._bytes > MOST_BYTES:
                self._drop_first(max(self._projects.values(), key=_weight))

    async def release(self, claim: Claim) -> None:
        entry = self._mine(claim)
        if entry is not None and entry.answer is None:
            del self._projects[claim.project][claim.name]

    async def run(self) -> None:
        await asyncio.Event().wait()  # claims end with the process

    def _mine(self, claim: Claim) -> _Entry | None:
        entries = self._projects.get(claim.project)
        entry = entries.get(claim.name) if entries else None
        return entry if entry is not None and entry.claim.owner == claim.owner else None

    def _drop_old(self, entries: "OrderedDict[str, _Entry]") -> None:
        late = self._clock() - KEEP_S
        while entries and next(iter(entries.values())).at <= late:
            _, entry = entries.popitem(last=False)
            self._bytes -= entry.size

    def _drop_first(self, entries: "OrderedDict[str, _Entry]") -> None:
        """The oldest with an answer; if there is none, the oldest."""
        name = next((n for n, e in entries.items() if e.answer), next(iter(entries)))
        self._bytes -= entries.pop(name).size


def _weight(entries: "OrderedDict[str, _Entry]") -> int:
    return sum(entry.size for entry in entries.values())


def found(request: str, claim: Claim, answer: Kept | None) -> Kept:
    """What a key that was there already means for the one who asks now."""
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
