"""Prompts that other engines compute, and their pages on the way into our own.

A request waits, holding nothing, until its giver offers the pages: then it is seated as any other,
and what its prefix lacks comes page by page, each found by others as if it had been computed here.
Whatever goes wrong, the rest of the prompt is computed here: a ticket never fails a request.
Belongs to the engine loop's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.handoff.key import key_of
from engine.handoff.news import Arrived, Came, Held, Lost, News, Offered, PageTransfer, Shown, Wire
from engine.observer import Handed, Handoff, Observer, Side
from engine.protocol import TokenLogprobs
from engine.request import Awaits, Request
from engine.seating import Seating
from engine.sequence import Phase, Sequence

Deliver = Callable[[Sequence, int, TokenLogprobs | None], None]


@dataclass(slots=True)
class Coming:
    request: Request
    since: float  # when something happened last, seconds
    cached: int = 0
    pool: bytes = b""  # the giver's, where its pages can be read
    direct: bool = False
    placing: int | None = None  # of the sequence as its pages were asked for
    began: float = 0.0  # seconds
    lacking: int = 0  # index of the first page that is not here
    here: set[int] = field(default_factory=set)  # those that are, beyond it
    moved: int = 0  # pages

    @property
    def sequence(self) -> Sequence:
        return self.request.choices[0]

    @property
    def wanted(self) -> bool:
        """The sequence runs in the pages that were asked to be filled."""
        runs = self.sequence.phase is Phase.RUNNING and self.sequence.placing == self.placing
        return runs and self.sequence.filling


class Taking:
    def __init__(
        self,
        wire: Wire,
        transfer: PageTransfer,
        seating: Seating,  # type: ignore[type-arg]  # of whatever adapters
        *,
        timeout_s: float,
        observer: Observer,
        deliver: Deliver,
    ) -> None:
        """``deliver`` gets the first token of a sequence whose prompt is all here."""
        self._wire, self._transfer, self._seating = wire, transfer, seating
        self._timeout_s, self._observer, self._deliver = timeout_s, observer, deliver
        self._coming: dict[str, Coming] = {}  # by ticket

    def __len__(self) -> int:
        return len(self._coming)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._coming

    def add(self, request: Request, now: float) -> None:
        ticket = request.submit.ticket
        assert ticket is not None, "what comes has a ticket"
        request.awaits = Awaits.OFFER
        self._coming[ticket.name] = Coming(request, now)
        self._wire.expect(ticket, key_of(request.submit))

    def forgo(self, request: Request, now: float) -> None:
        """The gateway knows that nothing more comes."""
        ticket = request.submit.ticket
        if ticket is not None and ticket.name in self._coming:
            self._end(ticket.name, Handed.FORGONE, now)

    def hear(self, news: News, now: float) -> None:
        coming = self._coming.get(news.ticket)
        match news:
            case Arrived(_, index, slot):
                self._arrived(coming, index, slot, now)
            case Offered(_, cached, pool) if coming and coming.request.awaits is Awaits.OFFER:
                coming.request.awaits = Awaits.OFFERED
                coming.since, coming.cached, coming.pool = now, cached, pool
            case Shown(ticket, index, page) if coming and self._lacks(coming, index):
                self._read(coming, ticket, index, page, now)
            case Held(_, index) if coming and self._lacks(coming, index):
                self._fill(coming, index, now)
            case Came(ticket, token, logprobs) if coming and coming.wanted:
                self._came(coming, ticket, token, logprobs, now)
            case Lost(ticket, _) if coming:
                self._end(ticket, Handed.LOST, now)
            case _:
                pass  # of a ticket that is over

    def look(self, now: float) -> None:
        """After a pass was planned: see who runs now, who is over and who waits in vain."""
        for name, coming in list(self._coming.items()):
            sequence, awaits = coming.sequence, coming.request.awaits
            if sequence.finished:
                self._end(name, Handed.ENDED, now)
            elif awaits is Awaits.NOTHING:
                self._end(name, Handed.YIELDED, now)
            elif awaits is Awaits.PAGES and coming.placing is None:
                self._begin(name, coming, now)
            elif now - coming.since >= self._timeout_s:
                self._end(name, Handed.EXPIRED, now)

    def _begin(self, name: str, coming: Coming, now: float) -> None:
        sequence, request = coming.sequence, coming.request
        coming.placing, coming.began, coming.since = sequence.placing, now, now
        coming.lacking = sequence.computed // self._page_tokens
        request.started = True
        sequence.course.started = request.first_pass = now
        request.cached = max(request.cached or 0, coming.cached)
        coming.direct = bool(coming.pool) and self._transfer.reads(coming.pool)
        self._wire.begin(name, coming.lacking, direct=coming.direct)

    def _arrived(self, coming: Coming | None, index: int, slot: int, now: float) -> None:
        if coming is None or not self._lacks(coming, index):
            self._wire.taken(slot, lambda: True)
            return
        self._wire.taken(slot, self._transfer.back(slot, coming.sequence.pages[index]))
        self._fill(coming, index, now)

    def _lacks(self, coming: Coming, index: int) -> bool:
        """The page at an index is its own to fill, and was not filled yet."""
        if not coming.wanted or index in coming.here:
            return False
        return coming.lacking <= index < self._pages(coming)

    def _read(self, coming: Coming, ticket: str, index: int, page: int, now: float) -> None:
        try:
            ended = self._transfer.read(coming.pool, page, coming.sequence.pages[index])
        except IndexError:  # no page of theirs
            self._end(ticket, Handed.LOST, now)
            return
        self._wire.was_read(ticket, index, ended)

    def _fill(self, coming: Coming, index: int, now: float) -> None:
        """A page is here, or its copy was asked for. The last one counts with the first token."""
        coming.since = now
        coming.moved += 1
        coming.here.add(index)
        sequence, prompt = coming.sequence, len(coming.request.submit.tokens)
        while coming.lacking in coming.here and (coming.lacking + 1) * self._page_tokens < prompt:
            coming.here.remove(coming.lacking)
            coming.lacking += 1
        computed = coming.lacking * self._page_tokens
        if computed > sequence.computed:
            sequence.fill(computed)
            self._seating.settle(sequence, computed)

    def _came(
        self, coming: Coming, ticket: str, token: int, logprobs: TokenLogprobs | None, now: float
    ) -> None:
        sequence, prompt = coming.sequence, len(coming.request.submit.tokens)
        whole = coming.lacking in coming.here and coming.lacking == self._pages(coming) - 1
        if not whole or coming.request.dry:
            self._end(ticket, Handed.LOST, now)
            return
        sequence.fill(prompt)
        self._seating.settle(sequence, prompt)
        self._end(ticket, Handed.DONE, now)
        self._deliver(sequence, token, logprobs)

    def _end(self, name: str, outcome: Handed, now: float) -> None:
        """From now on its request is like any other."""
        coming = self._coming.pop(name)
        coming.request.awaits = Awaits.NOTHING
        if outcome is not Handed.DONE:
            self._wire.forget(name)
        seconds = now - coming.began if coming.placing is not None else 0.0
        self._observer.handed(Handoff(Side.TOOK, outcome, coming.moved, seconds, coming.direct))

    def _pages(self, coming: Coming) -> int:
        return self._seating.pages_for(len(coming.request.submit.tokens))

    @property
    def _page_tokens(self) -> int:
        return self._seating.page_tokens
