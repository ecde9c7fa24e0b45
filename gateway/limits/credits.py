"""Credits that expire: what of them was not used is taken off, once. Credit that expires first is
used first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Grant:
    nano: int
    granted_at: datetime
    expires_at: datetime | None
    lapsed: int | None = None  # nano-dollars; None: has not expired yet


def lapse(grants: Sequence[Grant], index: int, spent: int) -> int:
    """What lapses of the grant that expires now, when so much was spent since the first grant.

    Money goes to the grants that expire first. Grants that lapsed earlier have taken what they
    did not lose. Pure.
    """
    grant = grants[index]
    assert grant.expires_at is not None
    before = [
        other
        for i, other in enumerate(grants)
        if i != index and other.expires_at is not None and other.expires_at <= grant.expires_at
    ]
    taken = sum(other.nano - (other.lapsed or 0) for other in before)
    used = min(grant.nano, max(0, spent - taken))
    return grant.nano - used
