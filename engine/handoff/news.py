"""What the engine's loop and its handoffs' wire tell each other.

A handoff is a prompt that one engine, the giver, computes for another, the taker, that goes on from
its pages. The loop of either decides; the wire carries pages between them and decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.protocol import Ticket, TokenLogprobs

Ended = Callable[[], bool]  # whether a copy that was asked for is over; for any thread


@dataclass(frozen=True, slots=True)
class Offered:
    """To the taker: the giver computes the prompt now."""

    ticket: str
    cached: int  # prompt tokens that the giver had computed already
    pool: bytes = b""  # where its pages can be read by another process of this host; empty: nowhere


@dataclass(frozen=True, slots=True)
class Arrived:
    """To the taker: the page at an index of the prompt is in a slot."""

    ticket: str
    index: int
    slot: int


@dataclass(frozen=True, slots=True)
class Shown:
    """To the taker: it is a page of the giver's pool, to be read from there."""

    ticket: str
    index: int
    page: int


@dataclass(frozen=True, slots=True)
class Held:
    """To the taker: the giver held that page until it was read."""

    ticket: str
    index: int


@dataclass(frozen=True, slots=True)
class Came:
    """To the taker: every page was sent, and this is the first token."""

    ticket: str
    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Lost:
    """To the taker: nothing more will come."""

    ticket: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the giver: the taker has room for its pages, and lacks those from ``first`` on."""

    ticket: str
    first: int
    direct: bool  # it reads them from the giver's pool


@dataclass(frozen=True, slots=True)
class WasRead:
    """To the giver: the taker has read the page that it was shown."""

    ticket: str
    index: int


@dataclass(frozen=True, slots=True)
class Broken:
    """To the giver: the taker takes no more."""

    ticket: str
    reason: str


News = Offered | Arrived | Shown | Held | Came | Lost | Wanted | WasRead | Broken


class PageTransfer(Protocol):
    """Host memory for so many pages on their way. ``out``, ``back`` and ``read`` belong to the
    loop, take effect as a ``PageSwap``'s do, and return what says when the copy is over."""

    @property
    def slots(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def pool(self) -> bytes:
        """What another process of this host needs to read our pages; empty where none can."""
        ...

    def out(self, page: int, slot: int) -> Ended:
        """No pass under way writes the page."""
        ...

    def back(self, slot: int, page: int) -> Ended: ...

    def reads(self, pool: bytes) -> bool:
        """Whether another engine's pages can be read from here."""
        ...

    def read(self, pool: bytes, theirs: int, page: int) -> Ended: ...

    def view(self, slot: int) -> memoryview:
        """Its bytes, for whichever thread has the slot to itself."""
        ...


class Wire(Protocol):
    """Carries pages. Called from the loop, never waits; answers by ``News``."""

    def expect(self, ticket: Ticket, key: bytes) -> None:
        """As taker: pages of the prompt that this key names may be offered."""
        ...

    def begin(self, ticket: str, first: int, *, direct: bool) -> None:
        """As taker: let the pages from an index on come."""
        ...

    def taken(self, slot: int, ended: Ended) -> None:
        """As taker: once the copy is over, another page may come into the slot."""
        ...

    def was_read(self, ticket: str, index: int, ended: Ended) -> None:
        """As taker: once the copy is over, a page that was shown has been read."""
        ...

    def forget(self, ticket: str) -> None:
        """As taker: nothing is wanted any more; what arrives of it is dropped."""
        ...

    def slot(self) -> int | None:
        """As giver: a slot to copy a page into, if one is free."""
        ...

    def offer(self, ticket: Ticket, key: bytes, cached: int) -> None:
        """As giver: find the taker and tell it."""
        ...

    def page(self, ticket: str, index: int, slot: int, ended: Ended) -> None:
        """As giver: send what is in the slot once the copy is over; the slot is the wire's now."""
        ...

    def show(self, ticket: str, index: int, page: int) -> None:
        """As giver: the page may be read from our pool."""
        ...

    def held(self, ticket: str, index: int) -> None:
        """As giver: it was ours until it was read."""
        ...

    def drew(self, ticket: str, token: int, logprobs: TokenLogprobs | None) -> None:
        """As giver: that was the last page."""
        ...

    def drop(self, ticket: str, reason: str) -> None:
        """As giver: nothing more will come."""
        ...
