"""What the choices of one Submit share: its limits, what it waits for, and how far it is.

Belongs to the engine loop's thread.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.activation import active_from
from engine.matcher import Matcher
from engine.protocol import Submit

if TYPE_CHECKING:  # a choice knows its request
    from engine.sequence import Sequence

PATIENCE_S = 60.0  # within its tenant, a request is due after this long at the latest


class Awaits(StrEnum):
    """What a request whose prompt another engine computes waits for."""

    NOTHING = "nothing"
    OFFER = "offer"  # that the other engine begins; no page is held
    OFFERED = "offered"  # room for the pages
    PAGES = "pages"  # its first choice runs, and no pass computes any of it


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """What the choices of one Submit share."""

    submit: Submit
    connection: int
    serial: int  # order of arrival
    arrived: float  # seconds
    limit: int  # tokens each choice may generate: max_tokens, or what the context leaves
    stops: frozenset[int]  # tokens that end a choice
    deadline: float | None = None  # seconds
    grammar: Future[Matcher] | None = None  # being compiled; None: an answer may be anything
    choices: list["Sequence"] = field(default_factory=list)
    granted: int = 0  # tokens all choices may generate
    asked: int = 0  # the grant at which more was last asked for
    dry_since: float | None = None
    spent: int = 0  # tokens drawn, or being drawn by the pass under way
    started: bool = False  # a pass has computed some of it: too late to refuse
    first_pass: float | None = None  # seconds
    cached: int | None = None  # prompt tokens found computed when it first ran; None: not yet
    awaits: Awaits = Awaits.NOTHING
    leaving: bool = False  # its token is drawn, its pages are yet to be given to another engine
    active_from: int = field(init=False)  # positions before it are the base model's (aLoRA)

    def __post_init__(self) -> None:
        adapter = self.submit.adapter
        self.active_from = active_from(self.submit.tokens, adapter.invocation) if adapter else 0
        total, granted = self.total, self.submit.granted
        self.granted = total if granted is None else min(granted, total)
        self.asked = -1

    @property
    def total(self) -> int:
        return self.limit * self.submit.n

    @property
    def due(self) -> float:
        """When it should be served: its deadline, or as late as anybody is made to wait."""
        latest = self.arrived + PATIENCE_S
        return latest if self.deadline is None else min(latest, self.deadline)

    @property
    def positions(self) -> int:
        """KV positions a choice may come to need: its last token's is never computed."""
        return len(self.submit.tokens) + self.limit - 1

    @property
    def digest(self) -> str | None:
        return self.submit.adapter.digest if self.submit.adapter else None

    def computed_with(self, stop: int) -> str | None:
        """Digest of the adapter that KV of positions before ``stop`` was computed with."""
        return self.digest if stop > self.active_from else None

    @property
    def compiling(self) -> bool:
        """Its grammar is not known yet."""
        return self.grammar is not None and not self.grammar.done()

    @property
    def unready(self) -> bool:
        """Its grammar is not known, or cannot be followed."""
        return self.grammar is not None and (self.compiling or bool(self.grammar.exception()))

    @property
    def metered(self) -> bool:
        """Its grant ends before the request does."""
        return self.granted < self.total

    @property
    def dry(self) -> bool:
        """No further token may be drawn before a Grant."""
        return self.spent >= self.granted and self.metered

    @property
    def unfinished(self) -> list["Sequence"]:
        return [choice for choice in self.choices if not choice.finished]

    @property
    def prompt_computed(self) -> int:
        return max(choice.prompt_computed for choice in self.choices)

    @property
    def gives(self) -> bool:
        """Its prompt is computed for another engine, which records and answers the request."""
        ticket = self.submit.ticket
        return ticket is not None and bool(ticket.to)

    @property
    def held(self) -> bool:
        """It cannot be given pages: they would be of no use."""
        return self.awaits is Awaits.OFFER or self.leaving

    @property
    def generated(self) -> int:
        return sum(choice.generated for choice in self.choices)

    def grant(self, granted: int) -> None:
        """Allow so many tokens in all. A grant is never taken back."""
        self.granted = max(self.granted, min(granted, self.total))
        self.dry_since = None

    def ask(self, ahead: int, step: int) -> int | None:
        """The total to ask a Grant for: once per grant, when ``ahead`` or fewer tokens are left."""
        if not self.metered or self.asked == self.granted:
            return None
        if self.granted - self.spent > ahead:
            return None
        self.asked = self.granted
        return min(self.total, self.granted + step)
