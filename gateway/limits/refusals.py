"""Who was refused lately, and by which limit: for people who ask why.

Kept by this process, in minutes and for a quarter of an hour; the oldest are forgotten first when
there are too many.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.identity.principal import Principal
from gateway.limits.rules import Rule

KEPT = timedelta(minutes=15)
MOST = 5_000


@dataclass(frozen=True, slots=True)
class Refused:
    """One key at one limit."""

    principal: Principal
    rule: Rule
    times: int
    first: datetime
    last: datetime
    wait_s: float  # as the last was told


class Refusals:
    """Belongs to one event loop."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._known: OrderedDict[tuple[str, str], Refused] = OrderedDict()

    def note(self, principal: Principal, rule: Rule, wait_s: float) -> None:
        place, now = (principal.key, rule.name), self._now()
        known = self._known.pop(place, None)
        if known is None or now - known.last > KEPT:
            known = Refused(principal, rule, 0, now, now, wait_s)
        self._known[place] = Refused(principal, rule, known.times + 1, known.first, now, wait_s)
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    def of(self, organisation: str) -> list[Refused]:
        """Last refused first."""
        since = self._now() - KEPT
        return [
            each
            for each in reversed(self._known.values())
            if each.last >= since and each.principal.organisation == organisation
        ]
