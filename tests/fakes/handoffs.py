"""Wires of handoffs without sockets: engines of one test, joined by queues that a test may disturb.

A ``Link`` joins one giver and one taker. What either says waits in its queue until ``carry`` brings
it, in order, to the other's inbox; ``cut`` is a connection that breaks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.handoff.news import (
    Arrived,
    Broken,
    Came,
    Ended,
    Held,
    Lost,
    News,
    Offered,
    Shown,
    Wanted,
    WasRead,
)
from engine.protocol import Ticket, TokenLogprobs
from tests.fakes.runner import FakeMemory

POOL = b"pool"


@dataclass
class FakeTransfer:
    """PageTransfer: a slot holds what its page held when it was copied."""

    memory: FakeMemory
    slots: int = 4
    page_bytes: int = 100
    pool: bytes = b""
    other: "FakeTransfer | None" = None  # whose pages can be read from here
    held: dict[int, object] = field(default_factory=dict)

    def out(self, page: int, slot: int) -> Ended:
        self.memory.settle()
        self.held[slot] = self._copy(self.memory.cells.get(page, {}))
        return lambda: True

    def back(self, slot: int, page: int) -> Ended:
        self.memory.settle()
        self.memory.cells[page] = self._copy(self.held[slot])  # type: ignore[assignment]
        return lambda: True

    def reads(self, pool: bytes) -> bool:
        return self.other is not None and pool == POOL

    def read(self, pool: bytes, theirs: int, page: int) -> Ended:
        assert self.other is not None
        self.other.memory.settle()
        self.memory.settle()
        cells = self.other.memory.cells.get(theirs, {})
        self.memory.cells[page] = self._copy(cells)  # type: ignore[assignment]
        return lambda: True

    def view(self, slot: int) -> memoryview:
        raise NotImplementedError

    @staticmethod
    def _copy(held: object) -> object:
        return dict(held) if isinstance(held, dict) else held


@dataclass
class Link:
    """Both wires: ``taker`` and ``giver`` are ends of it."""

    takes: FakeTransfer
    gives: FakeTransfer
    tell_taker: Callable[[News], None]
    tell_giver: Callable[[News], None]
    expected: dict[str, bytes] = field(default_factory=dict)
    early: dict[str, Callable[[], None]] = field(default_factory=dict)  # offers
    open: set[str] = field(default_factory=set)
    to_taker: deque[tuple[str, Callable[[], None]]] = field(default_factory=deque)
    to_giver: deque[tuple[str, Callable[[], None]]] = field(default_factory=deque)
    free_in: list[int] = field(default_factory=list)
    free_out: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free_in = list(range(self.takes.slots))
        self.free_out = list(range(self.gives.slots))
        self.taker, self.giver = TakerEnd(self), GiverEnd(self)

    def carry(self, most: int = 1_000) -> None:
        """Bring what was said across, alternating, unless the taker has no slot."""
        for _ in range(most):
            if not self.to_taker and not self.to_giver:
                return
            if self.to_giver:
                self.to_giver.popleft()[1]()
            if self.to_taker:
                name, deliver = self.to_taker[0]
                if name == "page" and not self.free_in:
                    return
                self.to_taker.popleft()
                deliver()

    def cut(self, ticket: str) -> None:
        """Both ends notice, after whatever was under way."""
        if ticket in self.open:
            self.open.discard(ticket)
            self.tell_taker(Lost(ticket, "the connection broke"))
            self.tell_giver(Broken(ticket, "the connection broke"))


@dataclass
class TakerEnd:
    link: Link

    def expect(self, ticket: Ticket, key: bytes) -> None:
        self.link.expected[ticket.name] = key
        if early := self.link.early.pop(ticket.name, None):
            early()

    def begin(self, ticket: str, first: int, *, direct: bool) -> None:
        if ticket in self.link.open:
            news = Wanted(ticket, first, direct)
            self.link.to_giver.append(("begin", lambda: self.link.tell_giver(news)))

    def taken(self, slot: int, ended: Ended) -> None:
        assert ended()
        assert slot not in self.link.free_in
        self.link.free_in.append(slot)

    def was_read(self, ticket: str, index: int, ended: Ended) -> None:
        assert ended()
        news = WasRead(ticket, index)
        self.link.to_giver.append(("read", lambda: self.link.tell_giver(news)))

    def forget(self, ticket: str) -> None:
        self.link.expected.pop(ticket, None)
        if ticket in self.link.open:
            self.link.open.discard(ticket)
            news = Broken(ticket, "forgotten")
            self.link.to_giver.append(("forget", lambda: self.link.tell_giver(news)))

    def slot(self) -> int | None:
        raise NotImplementedError

    offer = page = show = held = drew = drop = slot  # type: ignore[assignment]


@dataclass
class GiverEnd:
    link: Link

    def slot(self) -> int | None:
        return self.link.free_out.pop() if self.link.free_out else None

    def offer(self, ticket: Ticket, key: bytes, cached: int) -> None:
        link = self.link
        link.open.add(ticket.name)
        offered = Offered(ticket.name, cached, link.gives.pool)

        def deliver() -> None:
            if ticket.name not in link.open:
                return
            if link.expected.get(ticket.name, key) != key:
                link.cut(ticket.name)
            elif ticket.name in link.expected:
                link.tell_taker(offered)
            else:
                link.early[ticket.name] = deliver

        link.to_taker.append(("offer", deliver))

    def page(self, ticket: str, index: int, slot: int, ended: Ended) -> None:
        assert ended()
        link = self.link
        held = link.gives.held[slot]

        def deliver() -> None:
            link.free_out.append(slot)
            if ticket in link.open:
                into = link.free_in.pop()
                link.takes.held[into] = held
                link.tell_taker(Arrived(ticket, index, into))

        link.to_taker.append(("page", deliver))

    def show(self, ticket: str, index: int, page: int) -> None:
        self._say(ticket, Shown(ticket, index, page))

    def held(self, ticket: str, index: int) -> None:
        self._say(ticket, Held(ticket, index))

    def drew(self, ticket: str, token: int, logprobs: TokenLogprobs | None) -> None:
        self._say(ticket, Came(ticket, token, logprobs))

    def drop(self, ticket: str, reason: str) -> None:
        self._say(ticket, Lost(ticket, reason))
        self.link.to_taker.append(("drop", lambda: self.link.open.discard(ticket)))

    def _say(self, ticket: str, news: News) -> None:
        def deliver() -> None:
            if ticket in self.link.open:
                self.link.tell_taker(news)

        self.link.to_taker.append(("news", deliver))

    def expect(self, ticket: Ticket, key: bytes) -> None:
        raise NotImplementedError

    begin = taken = was_read = forget = expect  # type: ignore[assignment]
