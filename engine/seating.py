"""Gives sequences their pages and takes them back; the one place where pages change hands.

What is computed already is shared: a prefix in the tree, or the prompt of another choice of the
same request, whose last, half-full page is copied. The rest is made room for, by the one eviction
policy. A sequence holds pages and pins its adapter exactly while it runs. Belongs to the engine
loop's thread.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as View
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Generic

from engine.built import Built
from engine.config import EngineConfig
from engine.eviction import Dependants, Eviction
from engine.observer import Observer
from engine.pages import PagePool
from engine.prefix import Node, PrefixIndex
from engine.request import Request
from engine.residency import P, Residency
from engine.sequence import Phase, Sequence
from engine.swap import Swap

HEADROOM = 50  # one page in so many stays free when a sequence is admitted


class Seat(Enum):
    TAKEN = auto()
    LATER = auto()  # cannot go yet; whoever is behind may
    OVER = auto()  # its tenant holds its share of the pages; other tenants may go
    FULL = auto()  # waits for pages; nobody may take them first


@dataclass(frozen=True, slots=True)
class _Head:
    """What a sequence need not compute: whole pages to share, perhaps a part of one to copy."""

    nodes: list[Node]  # of the tree, the first of the pages
    pages: View[int]
    tokens: int
    partial: int | None = None  # the page whose first tokens are to be copied
    swapped: bool = False  # what follows them is in host memory


class Seating(Generic[P]):
    def __init__(
        self,
        config: EngineConfig,
        built: Built[P],
        *,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = PagePool(built.num_pages)
        self.eviction, dependants = Eviction(self.pool), Dependants()
        self.residency = Residency(
            self.pool, built.memory, built.adapters, eviction=self.eviction,
            dependants=dependants, max_loads=config.max_adapter_loads, observer=observer,
            clock=clock,
        )  # fmt: skip
        self.prefix = PrefixIndex(
            self.pool, self.eviction, dependants, page_tokens=config.page_tokens,
            enabled=config.enable_prefix_caching,
        )  # fmt: skip
        self.swap = Swap(built.swap, page_tokens=config.page_tokens, observer=observer)
        self.eviction.add(self.prefix)
        self.eviction.add(self.residency)
        self.page_tokens = config.page_tokens
        self._tenant_pages = int(config.max_tenant_share * built.num_pages)
        self._copies: list[tuple[int, int]] = []

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def take_copies(self) -> list[tuple[int, int]]:
        """Pages to copy before the next pass: (from, to)."""
        copies, self._copies = self._copies, []
        return copies

    def never_fits(self, request: Request) -> bool:
        """With its adapter, the request could not even run alone."""
        most = self.pages_for(request.positions)
        most += self.residency.size(request.digest) if request.digest else 0
        return most > self.pool.num_pages

    def found(self, sequence: Sequence) -> int:
        """Pages of it that are computed already."""
        return len(self.prefix.match(sequence))

    def seat(self, sequence: Sequence, running: int) -> Seat:
        """Give a waiting sequence pages for all it knows, and its adapter a place in the table."""
        head = self._head(sequence)
        if head is None:
            return Seat.LATER
        if self._over_share(sequence):
            return Seat.OVER
        if not self._room(sequence, head, running):
            return Seat.FULL
        self.prefix.begin(sequence, head.nodes)
        self.pool.share(head.pages, sequence.owner)
        if not self._pin(sequence):
            self._let_go(sequence)
            return Seat.LATER  # it cannot be laid out; its requests hear of it next
        fresh = self._take(sequence, self.pages_for(sequence.known) - len(head.pages))
        pages, tokens = [*head.pages, *fresh], head.tokens
        if head.partial is not None:
            self._copies.append((head.partial, fresh[0]))
        if head.swapped:
            tokens = self.swap.bring(sequence, pages, len(head.pages))
        self.swap.drop(sequence)
        sequence.place(pages, tokens)
        return Seat.TAKEN

    def grow(self, sequence: Sequence) -> bool:
        """Pages for all a running sequence knows; False if there are none to be had."""
        missing = self.pages_for(sequence.known) - len(sequence.pages)
        if missing <= 0:
            return True
        if not self.eviction.make_room(missing):
            return False
        sequence.pages += self._take(sequence, missing)
        return True

    def reach(self, sequence: Sequence, ahead: int) -> bool:
        """Pages for so many tokens beyond what it knows, if there are any: drafts make nobody
        yield."""
        missing = self.pages_for(sequence.known + ahead) - len(sequence.pages)
        if missing > 0 and not self.eviction.make_room(missing):
            return False
        sequence.pages += self._take(sequence, missing) if missing > 0 else []
        return True

    def trim(self, sequence: Sequence) -> None:
        """Give back pages beyond what a running sequence knows."""
        excess = len(sequence.pages) - self.pages_for(sequence.known)
        if excess > 0:
            self.pool.trim(sequence.owner, excess)
            del sequence.pages[len(sequence.pages) - excess :]

    def settle(self, sequence: Sequence, stop: int) -> None:
        """KV before ``stop`` is computed, and others may use it."""
        sequence.settled = stop
        self.prefix.file(sequence)

    def loss(self, sequence: Sequence) -> int:
        """Tokens of a running sequence that would be computed again were it to yield now."""
        return sequence.computed - self.prefix.kept(sequence)

    def keep(self, sequence: Sequence, *, squeezed: bool, token_s: float) -> None:
        """Before a running sequence yields: copy out what would be lost, where that is cheaper.

        ``squeezed``: for want of pages, so what only rests will not rest for long.
        """
        if sequence.sees_all:
            return  # each token of its prompt has to be seen again
        first = self.prefix.kept(sequence) // self.page_tokens
        if squeezed:
            shared = map(self.pool.shared, sequence.pages)
            first = sum(1 for _ in takewhile(bool, shared))
        self.swap.keep(sequence, first=first, token_s=token_s)

    def release(self, sequence: Sequence) -> None:
        """A running sequence gives up its pages; what was computed in them rests."""
        self._let_go(sequence)
        if sequence.request.digest:
            self.residency.unpin(sequence.request.digest)

    def retire(self, digest: str) -> None:
        """An adapter is gone for good, unless somebody runs or waits for it."""
        if not self.residency.wanted(digest):
            self.prefix.purge(digest)
            self.residency.retire(digest)

    def check(self) -> None:
        """Raise AssertionError if any page is not where it should be."""
        self.pool.check()
        self.prefix.check()
        self.residency.check()
        self.swap.check()

    def _head(self, sequence: Sequence) -> _Head | None:
        """None when somebody is computing more of it right now: that is worth waiting for."""
        nodes = self.prefix.match(sequence)
        pages, tokens = [node.page for node in nodes], len(nodes) * self.page_tokens
        kept = self.swap.of(sequence)
        if kept and kept.first <= len(nodes) and kept.tokens > tokens:
            return _Head(nodes, pages, tokens, swapped=True)
        choices = sequence.request.choices
        others = [other for other in choices if other.phase is Phase.RUNNING]
        prompt = len(sequence.request.submit.tokens)
        done = next((other for other in others if other.settled >= prompt), None)
        if tokens < prompt - 1 and others and not sequence.sees_all:
            if done is None:
                return None
            whole, part = divmod(prompt - 1, self.page_tokens)
            shared = done.pages[:whole]
            if shared[: len(pages)] == pages:
                return _Head(nodes, shared, prompt - 1, done.pages[whole] if part else None)
        if self.prefix.promised(sequence, nodes):
            return None
        return _Head(nodes, pages, tokens)

    def _over_share(self, sequence: Sequence) -> bool:
        """Its tenant holds so much that its next sequence has to wait."""
        held = self.pool.share_of(sequence.request.submit.tenant)
        wanted = held + self.pages_for(sequence.known)
        return self._tenant_pages < self.pool.num_pages and held > 0 and wanted > self._tenant_pages

    def _room(self, sequence: Sequence, head: _Head, running: int) -> bool:
        """Whether pages can be had without taking any from a running sequence."""
        digest = sequence.request.digest
        pages = self.pages_for(sequence.known) - len(head.pages)
        pages += min(running, self.pool.num_pages // HEADROOM)
        pages += sum(map(self.pool.rests, head.pages))  # are no longer to be evicted
        if digest:
            pages += self.residency.taken(digest)
        return pages <= self.eviction.pages

    def _pin(self, sequence: Sequence) -> bool:
        digest = sequence.request.digest
        if digest is None:
            return True
        row = self.residency.pin(digest)
        if row is not None:
            sequence.row = row
        return row is not None

    def _take(self, sequence: Sequence, pages: int) -> list[int]:
        made = self.eviction.make_room(pages)
        taken = self.pool.allocate(pages, sequence.owner)
        assert made, "room was counted before"
        assert taken is not None, "room was made"
        return taken

    def _let_go(self, sequence: Sequence) -> None:
        self.pool.free(sequence.owner)
        self.prefix.end(sequence)
