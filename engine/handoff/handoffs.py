"""Both sides of handoffs in one engine: prompts computed for others, and prompts others compute.

Belongs to the engine loop's thread.
"""

from engine.admission import Refusal
from engine.handoff.giving import Finish, First, Giving
from engine.handoff.news import News, PageTransfer, Wire
from engine.handoff.taking import Deliver, Taking
from engine.observer import Observer
from engine.protocol import RefusalCode, Submit
from engine.request import Request
from engine.seating import Seating


class Handoffs:
    def __init__(
        self,
        wire: Wire,
        transfer: PageTransfer,
        seating: Seating,  # type: ignore[type-arg]  # of whatever adapters
        *,
        timeout_s: float,
        observer: Observer,
        deliver: Deliver,
        finish: Finish,
    ) -> None:
        self.taking = Taking(
            wire, transfer, seating, timeout_s=timeout_s, observer=observer, deliver=deliver
        )
        self.giving = Giving(
            wire, transfer, page_tokens=seating.page_tokens, timeout_s=timeout_s,
            observer=observer, finish=finish,
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        """Something may happen that nobody tells of: a slot gets free, time runs out."""
        return bool(len(self.giving) or len(self.taking))

    def require_new(self, submit: Submit) -> None:
        """Raises Refusal: no answer could say which of two tickets of one name it is about."""
        ticket = submit.ticket
        if ticket is not None and (ticket.name in self.taking or ticket.name in self.giving):
            detail = f"ticket.name={ticket.name!r} is open already"
            raise Refusal(RefusalCode.INVALID, detail)

    def add(self, request: Request, now: float) -> None:
        """A request was taken in."""
        if request.gives:
            self.giving.add(request, now)
        elif request.submit.ticket is not None:
            self.taking.add(request, now)

    def forgo(self, request: Request, now: float) -> None:
        self.taking.forgo(request, now)

    def hear(self, news: News, now: float) -> None:
        self.taking.hear(news, now)
        self.giving.hear(news, now)

    def planned(self, now: float) -> None:
        """A pass is about to be launched."""
        self.taking.look(now)
        self.giving.look(now)

    def computed(self, now: float) -> None:
        """A pass was taken in."""
        self.giving.look(now)

    def drew(self, request: Request, first: First, now: float) -> None:
        self.giving.drew(request, first, now)
