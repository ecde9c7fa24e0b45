"""Prompts that we compute for other engines, and their pages on the way there.

Each page leaves once the pass that filled it was taken in, while later ones are computed. A
sequence keeps its pages until the last has left, so an engine that takes them slowly takes from us
places and pages, and in the end new work: nothing is buffered beyond the transfer's slots.
Belongs to the engine loop's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.handoff.key import key_of
from engine.handoff.news import Broken, News, PageTransfer, Wanted, WasRead, Wire
from engine.observer import Handed, Handoff, Observer, Side
from engine.protocol import Output, Ticket, TokenLogprobs
from engine.request import Request
from engine.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class First:
    """The token that a prompt brought, and the terminal that waits for its pages to leave."""

    token: int
    logprobs: TokenLogprobs | None
    terminal: Output


@dataclass(slots=True)
class Leaving:
    request: Request
    ticket: Ticket
    since: float  # when something happened last, seconds
    offered: bool = False
    next: int | None = None  # index of the page that leaves next; None: none is wanted yet
    direct: bool = False
    placing: int = 0  # of the sequence as its pages were asked for
    began: float = 0.0  # seconds
    moved: int = 0  # pages
    shown: dict[int, int] = field(default_factory=dict)  # page by index, not read yet
    first: First | None = None

    @property
    def sequence(self) -> Sequence:
        return self.request.choices[0]


Finish = Callable[[Sequence, Output | None, str], None]  # its terminal, or why it failed


class Giving:
    def __init__(
        self,
        wire: Wire,
        transfer: PageTransfer,
        *,
        page_tokens: int,
        timeout_s: float,
        observer: Observer,
        finish: Finish,
    ) -> None:
        self._wire, self._transfer, self._page_tokens = wire, transfer, page_tokens
        self._timeout_s, self._observer, self._finish = timeout_s, observer, finish
        self._leaving: dict[str, Leaving] = {}  # by ticket

    def __len__(self) -> int:
        return len(self._leaving)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._leaving

    def add(self, request: Request, now: float) -> None:
        ticket = request.submit.ticket
        assert ticket is not None, "what leaves has a ticket"
        self._leaving[ticket.name] = Leaving(request, ticket, now)

    def drew(self, request: Request, first: First, now: float) -> None:
        """Its prompt is computed; the request ends when its pages have left."""
        ticket = request.submit.ticket
        assert ticket is not None, "what leaves has a ticket"
        leaving = self._leaving[ticket.name]
        leaving.first, leaving.since = first, now
        request.leaving = True

    def hear(self, news: News, now: float) -> None:
        leaving = self._leaving.get(news.ticket)
        if leaving is None:
            return  # over
        match news:
            case Wanted(ticket, first, direct):
                if leaving.next is not None or not 0 <= first < self._pages(leaving):
                    self._fail(ticket, Handed.LOST, now, f"it wants pages from {first} on")
                    return
                leaving.next, leaving.direct = first, direct
                leaving.placing = leaving.sequence.placing
                leaving.began = leaving.since = now
            case WasRead(_, index):
                self._was_read(leaving, index, now)
            case Broken(ticket, reason):
                self._fail(ticket, Handed.LOST, now, reason)

    def look(self, now: float) -> None:
        """After a pass was taken in: let go what can leave, and see who is over."""
        for name, leaving in list(self._leaving.items()):
            sequence = leaving.sequence
            if sequence.finished:
                self._end(name, Handed.ENDED, now)
            elif self._yielded(leaving):
                self._fail(name, Handed.YIELDED, now, "its pages were needed")
            elif sequence.phase is Phase.RUNNING:
                self._send(name, leaving, now)
            elif not leaving.offered and now - leaving.since >= self._timeout_s:
                # Nobody waits for it any more: the taker computes it by now.
                self._fail(name, Handed.EXPIRED, now, "its turn did not come in time")

    def _yielded(self, leaving: Leaving) -> bool:
        """What is computed again can be given again, but not what may be read at any time."""
        sequence = leaving.sequence
        if leaving.first is not None and sequence.phase is not Phase.RUNNING:
            return True
        return leaving.direct and sequence.placing != leaving.placing

    def _send(self, name: str, leaving: Leaving, now: float) -> None:
        if not leaving.offered:
            leaving.offered = True
            key = key_of(leaving.request.submit)
            self._wire.offer(leaving.ticket, key, leaving.request.cached or 0)
        while self._ready(leaving) and self._let_go(name, leaving):
            leaving.since = now
        first, whole = leaving.first, leaving.next == self._pages(leaving) and not leaving.shown
        if first is not None and whole:
            self._wire.drew(name, first.token, first.logprobs)
            self._end(name, Handed.DONE, now)
            self._finish(leaving.sequence, first.terminal, "")
        elif first is not None and now - leaving.since >= self._timeout_s:
            self._fail(name, Handed.EXPIRED, now, "nobody took its pages in time")

    def _ready(self, leaving: Leaving) -> bool:
        index = leaving.next
        if index is None or index >= self._pages(leaving):
            return False
        prompt = len(leaving.request.submit.tokens)
        return leaving.sequence.settled >= min((index + 1) * self._page_tokens, prompt)

    def _let_go(self, name: str, leaving: Leaving) -> bool:
        """Whether the next page is on its way."""
        index = leaving.next
        assert index is not None, "somebody wants it"
        page = leaving.sequence.pages[index]
        if leaving.direct:
            leaving.shown[index] = page
            self._wire.show(name, index, page)
        else:
            slot = self._wire.slot()
            if slot is None:
                return False  # the taker, or the network, is slow
            self._wire.page(name, index, slot, self._transfer.out(page, slot))
        leaving.next = index + 1
        leaving.moved += 1
        return True

    def _was_read(self, leaving: Leaving, index: int, now: float) -> None:
        """If another page has taken its place meanwhile, what was read is worth nothing."""
        if index not in leaving.shown or self._yielded(leaving):
            return
        leaving.since = now
        name, page = leaving.ticket.name, leaving.sequence.pages[index]
        if page == leaving.shown[index]:
            del leaving.shown[index]
            self._wire.held(name, index)
        else:
            leaving.shown[index] = page
            self._wire.show(name, index, page)

    def _pages(self, leaving: Leaving) -> int:
        return -(-len(leaving.request.submit.tokens) // self._page_tokens)

    def _fail(self, name: str, outcome: Handed, now: float, reason: str) -> None:
        leaving = self._leaving[name]
        self._wire.drop(name, reason)
        self._end(name, outcome, now)
        if not leaving.sequence.finished:
            self._finish(leaving.sequence, None, f"handoff: {reason}")

    def _end(self, name: str, outcome: Handed, now: float) -> None:
        leaving = self._leaving.pop(name)
        if outcome is Handed.ENDED:
            self._wire.drop(name, "its request ended")
        seconds = now - leaving.began if leaving.next is not None else 0.0
        self._observer.handed(Handoff(Side.GAVE, outcome, leaving.moved, seconds, leaving.direct))
