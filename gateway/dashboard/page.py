"""What a page is: where it lies, whom it is for, what it shows and what may be done on it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from gateway.dashboard.visit import Form, Visit
from gateway.identity.rights import RIGHTS, Right
from gateway.identity.viewer import Audience, Viewer

EVERYBODY = frozenset(Audience)
TENANTS = EVERYBODY - {Audience.BILLING}
OPERATORS = frozenset({Audience.OPERATOR})


@dataclass(frozen=True, slots=True)
class Done:
    """Something was done: the page is loaded again and says so."""

    said: str
    href: str | None = None  # under the dashboard; None: the same page


@dataclass(frozen=True, slots=True)
class Shown:
    """The page itself with more to show, once: a new key, say."""

    more: Mapping[str, Any]


Content = Mapping[str, Any] | Response  # what the template needs; or the whole answer, for a file
Outcome = Done | Shown | Response


@dataclass(frozen=True, slots=True)
class Action:
    """What a form of the page does. Its button is named ``action``."""

    run: Callable[[Visit, Form], Awaitable[Outcome]]
    right: Right | None  # None: ``run`` asks itself, for a right in one project


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    path: str  # under /dashboard; "" is the first
    title: str
    section: str  # its heading in the navigation; "" for pages that are not in it
    icon: str = "grid"  # of static/icons.svg
    template: str
    show: Callable[[Visit], Awaitable[Content]]
    audiences: frozenset[Audience] = EVERYBODY
    right: Right = Right.READ
    of_one: bool = False  # of one organisation: an operator must choose which
    is_personal: bool = False  # about the viewer alone
    actions: Mapping[str, Action] = field(default_factory=dict)

    def is_for(self, viewer: Viewer) -> bool:
        """Whether it is in this viewer's navigation."""
        if viewer.audience not in self.audiences:
            return False
        return viewer.role is None or self.right in RIGHTS[viewer.role]
