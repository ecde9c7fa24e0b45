"""Which engine runs this request.

First an engine where the beginning of this conversation was computed; then one that holds the
adapter; then the rendezvous winner, so that cold loads of one adapter land on one engine whichever
gateway decides, and an engine that joins or leaves moves only its own share; then the least loaded.
All but the last only within a bound on the engine's load: what is popular spreads.

What it knows of engines is refreshed with every decision in a small fleet, else by ``refresh``.
Belongs to one event loop. A decision takes microseconds among a thousand engines, so loads and
names are kept in arrays; their places are ``Seat.place``.
"""

import random
from collections.abc import Collection, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.fleet.prefixes import Prefixes
from gateway.fleet.winners import SLOTS, Winners

SATURATED = 0.90  # share of what an engine runs at a time
RELAXED = 0.20  # an engine below this takes what it is best for, however idle the others are
SPREAD = 1.25  # beyond that, how far above the mean load it may be
SMALL = 16  # engines that are looked at before every decision
SAMPLED = 4  # of many warm engines, how many are compared
FIRST_ROOM = 8  # engines for which there is room at first


class Candidate(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def usable(self) -> bool: ...
    @property
    def load(self) -> float: ...  # 0 idle, 1 full; more where requests wait
    @property
    def share(self) -> float: ...  # of its load that one more request makes
    @property
    def resident(self) -> AbstractSet[str]: ...  # digests on its device; another set after a change


C = TypeVar("C", bound=Candidate)


class Wish(msgspec.Struct, frozen=True):
    """What matters about a request here."""

    digest: str | None = None  # of its adapter; None: the base alone
    tenant: str = ""
    tokens: Sequence[int] = ()  # of its prompt


@dataclass(slots=True, eq=False)
class Seat(Generic[C]):
    """One engine among others, for as long as it stays."""

    member: C
    place: int
    load: float = 1.0
    resident: AbstractSet[str] = frozenset()
    gone: bool = False


@dataclass(slots=True)
class Router(Generic[C]):
    page_tokens: int = 64
    gateways: float = 1.0  # that send to these engines, as far as can be told
    _seats: list[Seat[C]] = field(default_factory=list)
    _by_member: dict[Hashable, Seat[C]] = field(default_factory=dict)
    _warm: dict[str, list[Seat[C]]] = field(default_factory=dict)
    _prefixes: Prefixes[Seat[C]] = field(default_factory=Prefixes)
    _winners: Winners[Seat[C]] = field(default_factory=Winners)
    _changed: list[Seat[C]] = field(default_factory=list)  # whose load the arrays do not have yet
    _all: "_Arrays" = field(default_factory=lambda: _Arrays.of(FIRST_ROOM))
    _now: "_Arrays" = field(default_factory=lambda: _Arrays.of(0))  # the part that is in use
    _bound: float = RELAXED

    def __len__(self) -> int:
        return len(self._seats)

    def join(self, member: C) -> None:
        """Idempotent."""
        if id(member) in self._by_member:
            return
        seat = Seat(member, len(self._seats))
        if seat.place == len(self._all.keys):
            self._all = self._all.doubled()
        self._by_member[id(member)] = seat
        self._seats.append(seat)
        self._all.keys[seat.place] = _stable(member.name)
        self._now = self._all.first(len(self._seats))
        self._winners.join(seat, _stable(member.name))
        self._look(seat)

    def leave(self, member: C) -> None:
        """Idempotent. Whoever was last takes the place."""
        seat = self._by_member.pop(id(member), None)
        if seat is None:
            return
        self._settle()
        seat.gone = True
        self._cool(seat, seat.resident)
        last = self._seats.pop()
        if last is not seat:
            self._seats[seat.place] = last
            self._all.keys[seat.place] = self._all.keys[last.place]
            self._all.loads[seat.place] = last.load
            last.place = seat.place
        self._now = self._all.first(len(self._seats))
        self._winners.leave(seat, self._seats, self._now.keys)

    def refresh(self) -> None:
        """Look at every engine anew."""
        self._changed.clear()
        for seat in self._seats:
            self._look(seat)
        if self._seats:
            mean = float(self._now.loads.mean())
            self._bound = min(max(RELAXED, SPREAD * mean), SATURATED)

    def choose(self, wish: Wish, *, tried: Collection[C] = ()) -> C | None:
        """None where every engine was tried or is not usable."""
        alone = len(self._seats) == 1  # then no load decides anything
        if not alone and len(self._seats) <= SMALL:
            self.refresh()
        keys: Sequence[int] = ()
        if len(wish.tokens) > self.page_tokens:
            keys = self._prefixes.keys(_salt(wish), wish.tokens, self.page_tokens)
        while True:
            seat = self._only(tried) if alone else self._seat(wish, keys, tried)
            if seat is None or seat.member.usable:
                break
            self.leave(seat.member)
        if seat is None:
            return None
        if alone:
            self._prefixes.note(keys, seat)
            return seat.member
        # Others see what we see and choose alike: what they send meanwhile is told later.
        seat.load += seat.member.share * self.gateways
        self._changed.append(seat)
        self._prefixes.note(keys, seat)
        return seat.member

    def _only(self, tried: Collection[C]) -> Seat[C] | None:
        return next((seat for seat in self._seats if seat.member not in tried), None)

    def _seat(self, wish: Wish, keys: Sequence[int], tried: Collection[C]) -> Seat[C] | None:
        digest = wish.digest
        for seat in self._prefixes.known(keys):
            if self._takes(seat, tried) and (digest is None or digest in seat.resident):
                return seat
        if digest is not None:
            if (warm := self._warmest(digest, tried)) is not None:
                return warm
            # Where all that have it are busy, one new engine for everybody would be the next.
            crowded = digest in self._warm
            return self._winner(_drawn() if crowded else _of_digest(digest), tried)
        if keys:
            return self._winner(keys[-1], tried)
        return self._idlest(tried)

    def _takes(self, seat: Seat[C], tried: Collection[C]) -> bool:
        return not seat.gone and seat.load < self._bound and seat.member not in tried

    def _warmest(self, digest: str, tried: Collection[C]) -> Seat[C] | None:
        """The least loaded that holds it; of many, of a few drawn at random."""
        warm = self._warm.get(digest)
        if warm is None:
            return None
        if (count := len(warm)) > SAMPLED:
            draw = random.random
            warm = [warm[int(draw() * count)] for _ in range(SAMPLED)]
        best, load = None, self._bound
        for seat in warm:
            if seat.load < load and seat.member not in tried:
                best, load = seat, seat.load
        return best

    def _winner(self, key: int, tried: Collection[C]) -> Seat[C] | None:
        slot = key % SLOTS
        seat = self._winners.seats[slot]
        if seat is None or self._takes(seat, tried):
            return seat
        self._settle()
        scores = self._winners.scores(slot, self._now.keys)
        scores *= self._now.loads < self._bound
        for member in tried:
            if (other := self._by_member.get(id(member))) is not None:
                scores[other.place] = 0
        best = int(scores.argmax())
        return self._seats[best] if scores[best] else self._idlest(tried)

    def _settle(self) -> None:
        for seat in self._changed:
            if not seat.gone:
                self._all.loads[seat.place] = seat.load
        self._changed.clear()

    def _idlest(self, tried: Collection[C]) -> Seat[C] | None:
        self._settle()
        if not tried and self._seats:
            return self._seats[int(self._now.loads.argmin())]
        left = [seat for seat in self._seats if seat.member not in tried]
        return min(left, key=_load_of, default=None)

    def _look(self, seat: Seat[C]) -> None:
        seat.load = self._all.loads[seat.place] = seat.member.load
        now = seat.member.resident
        if now is not seat.resident:
            before, seat.resident = seat.resident, now
            self._cool(seat, before - now)
            for digest in now - before:
                self._warm.setdefault(digest, []).append(seat)

    def _cool(self, seat: Seat[C], digests: AbstractSet[str]) -> None:
        for digest in digests:
            warm = self._warm[digest]
            warm.remove(seat)
            if not warm:
                del self._warm[digest]


@dataclass(frozen=True, slots=True)
class _Arrays:
    """By place: [engines] each."""

    keys: npt.NDArray[np.uint32]  # hashes of names
    loads: npt.NDArray[np.float64]

    @classmethod
    def of(cls, count: int) -> "_Arrays":
        return cls(np.zeros(count, np.uint32), np.ones(count))

    def first(self, count: int) -> "_Arrays":
        """Views."""
        return _Arrays(self.keys[:count], self.loads[:count])

    def doubled(self) -> "_Arrays":
        count = len(self.keys)
        larger = _Arrays.of(2 * count)
        larger.keys[:count], larger.loads[:count] = self.keys, self.loads
        return larger


def _load_of(seat: Seat[C]) -> float:
    return seat.load


def _salt(wish: Wish) -> int:
    """The same in every gateway where it decides; with an adapter, the adapter does."""
    if wish.digest is not None:
        return hash((wish.tenant, wish.digest))
    return _stable(wish.tenant) if wish.tokens else 0


def _of_digest(digest: str) -> int:
    """It is a hash already."""
    return crc32(digest.encode("utf-8", "replace"))


def _drawn() -> int:
    return random.getrandbits(32)


def _stable(text: str) -> int:
    """The same in every gateway. 32 bits."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=4).digest()
    return int.from_bytes(digest)
