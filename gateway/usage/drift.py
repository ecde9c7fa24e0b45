"""Whether the books of the last hours agree: cheap enough to be asked all day."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.usage.reconcile import Difference
from gateway.usage.reconcile_repository import ReconcileRepository


async def recent_drift(session: AsyncSession, since: datetime) -> list[Difference]:
    """Roll-ups against the events they say they hold, from then on."""
    rows = ReconcileRepository(session)
    ledger, rolled = await rows.added_up(since), await rows.rolled_up(since)
    return [
        Difference("roll-ups", f"{name} of {place}", ours.get(name, 0), theirs.get(name, 0))
        for place in sorted(ledger.keys() | rolled.keys())
        for ours, theirs in [(ledger.get(place, {}), rolled.get(place, {}))]
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, 0) != theirs.get(name, 0)
    ]
