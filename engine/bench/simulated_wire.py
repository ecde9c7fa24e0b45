"""A wire of handoffs in simulated time: a link of one speed between two simulated engines."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.bench.simulated import SimulatedClock
from engine.handoff.news import Arrived, Broken, Came, Ended, Lost, News, Offered, Wanted
from engine.protocol import Ticket, TokenLogprobs

LATENCY_S = 0.0002  # of a message
SLOTS = 64

Tell = Callable[[float, News], None]  # at that time, seconds


@dataclass(frozen=True, slots=True)
class SimulatedTransfer:
    """Pages without content."""

    slots: int = SLOTS
    page_bytes: int = 8 << 20
    pool: bytes = b""

    def out(self, page: int, slot: int) -> Ended:
        return _over

    def back(self, slot: int, page: int) -> Ended:
        return _over

    def reads(self, pool: bytes) -> bool:
        return False

    def read(self, pool: bytes, theirs: int, page: int) -> Ended:
        raise NotImplementedError

    def view(self, slot: int) -> memoryview:
        raise NotImplementedError


class SimulatedWire:
    """One engine's end. ``join`` it to the other's."""

    def __init__(self, clock: SimulatedClock, tell: Tell, *, page_s: float) -> None:
        """``tell`` brings news to this engine."""
        self._clock, self._tell, self._page_s = clock, tell, page_s
        self._free = list(range(SLOTS))
        self._returns: list[tuple[float, int]] = []  # when a slot is free again
        self._link_free = 0.0  # when the last page has left
        self._told: dict[str, list[float]] = {}  # tickets that were told of here
        self._other: SimulatedWire | None = None

    def join(self, other: "SimulatedWire") -> None:
        self._other, other._other = other, self

    def expect(self, ticket: Ticket, key: bytes) -> None:
        early = self._told.setdefault(ticket.name, [])
        for at in early:
            self._tell(max(at, self._clock()), Offered(ticket.name, cached=0))

    def begin(self, ticket: str, first: int, *, direct: bool) -> None:
        self._say(Wanted(ticket, first, direct))

    def taken(self, slot: int, ended: Ended) -> None:
        """Slots of the taker are as many as are sent."""

    def was_read(self, ticket: str, index: int, ended: Ended) -> None:
        raise NotImplementedError

    def forget(self, ticket: str) -> None:
        self._say(Broken(ticket, "forgotten"))

    def slot(self) -> int | None:
        now = self._clock()
        while self._returns and self._returns[0][0] <= now:
            self._free.append(self._returns.pop(0)[1])
        return self._free.pop() if self._free else None

    def offer(self, ticket: Ticket, key: bytes, cached: int) -> None:
        assert self._other is not None, "it is joined"
        at = self._clock() + LATENCY_S
        if ticket.name in self._other._told:
            self._other._tell(at, Offered(ticket.name, cached))
        else:
            self._other._told[ticket.name] = [at]

    def page(self, ticket: str, index: int, slot: int, ended: Ended) -> None:
        self._link_free = max(self._link_free, self._clock()) + self._page_s
        self._returns.append((self._link_free, slot))
        self._say(Arrived(ticket, index, slot))

    def show(self, ticket: str, index: int, page: int) -> None:
        raise NotImplementedError

    def held(self, ticket: str, index: int) -> None:
        raise NotImplementedError

    def drew(self, ticket: str, token: int, logprobs: TokenLogprobs | None) -> None:
        self._say(Came(ticket, token, logprobs))

    def drop(self, ticket: str, reason: str) -> None:
        self._say(Lost(ticket, reason))

    def _say(self, news: News) -> None:
        """In order: what is said after a page comes after it."""
        assert self._other is not None, "it is joined"
        self._other._tell(max(self._link_free, self._clock()) + LATENCY_S, news)


def _over() -> bool:
    return True
