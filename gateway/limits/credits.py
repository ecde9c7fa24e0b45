"""Credits that expire: whose money a prepaid organisation spends, and what of it lapses. Pure.

Spending goes to the credit that expires first among those valid when it happens, so the time
between two changes (a grant, an expiry) is looked at as a whole: a span. What is spent beyond all
valid credits, which a correction of prices can bring about, is taken from the next ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

NEVER = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Grant:
    id: str
    nano: int
    granted_at: datetime
    expires_at: datetime | None
    lapsed: int | None = None  # nano-dollars; None: has not expired yet, as far as is known

    @property
    def end(self) -> datetime:
        return self.expires_at or NEVER


def boundaries(grants: Sequence[Grant], now: datetime) -> list[datetime]:
    """Where the spans begin; the last one ends now."""
    times = {grant.granted_at for grant in grants} | {grant.end for grant in grants}
    return sorted(time for time in times if time <= now)


def left(grants: Sequence[Grant], spans: Sequence[tuple[datetime, int]]) -> dict[str, int]:
    """What of each credit nobody has used: by the beginning of each span and what was spent in it.

    What lapsed already is not left.
    """
    remaining = {grant.id: grant.nano - (grant.lapsed or 0) for grant in grants}
    debt = 0
    for begin, spent in spans:
        debt += spent
        valid = [grant for grant in grants if grant.granted_at <= begin < grant.end]
        for grant in sorted(valid, key=lambda grant: (grant.end, grant.granted_at, grant.id)):
            taken = min(debt, remaining[grant.id])
            remaining[grant.id] -= taken
            debt -= taken
    return remaining
