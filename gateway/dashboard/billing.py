"""``/dashboard/billing``: months as they are billed, the prices in force, and what sinks were sent.

A month's sum is of the events that are billed in it: a correction of a closed month stands in the
month that was open when it was made. So it equals what ``loratorio export`` writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from gateway.billing.sink_repository import SinkRepository
from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.page import Page
from gateway.dashboard.visit import Visit
from gateway.limits.period import MONTH, period_at
from gateway.usage.models import Price
from gateway.usage.report import Usage
from gateway.usage.report_repository import Window
from gateway.usage.repository import LedgerRepository

MONTHS = 13


@dataclass(frozen=True, slots=True)
class Month:
    first: date
    usage: Usage
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Line:
    """One price in force, or to come."""

    row: Price
    subject: str
    is_to_come: bool

    @property
    def per_million(self) -> tuple[int, int, int]:
        """Nano-dollars for a million tokens: input, cached input, output."""
        row = self.row
        return tuple(1000 * pico for pico in (row.input_pico, row.cached_input_pico,
                                              row.output_pico))  # type: ignore[return-value]  # fmt: skip


async def billing(visit: Visit) -> dict[str, Any]:
    month = period_at(visit.now, MONTH, "UTC")
    ledger = LedgerRepository(visit.session)
    closed = {row.period: row.closed_at for row in await ledger.closed_periods()}
    is_operator = visit.viewer.is_operator and not visit.organisation
    return {
        "months": await _months(visit, month.start, closed),
        "prices": await _prices(visit, await ledger.prices()),
        "sinks": await SinkRepository(visit.session).summary() if is_operator else None,
    }


async def _months(visit: Visit, this: datetime, closed: Mapping[date, datetime]) -> Sequence[Month]:
    """Newest first, from the first with usage on."""
    firsts = [this.date()]
    while len(firsts) < MONTHS:
        firsts.append((firsts[-1] - timedelta(days=1)).replace(day=1))
    start = datetime(firsts[-1].year, firsts[-1].month, 1, tzinfo=this.tzinfo)
    window = Window(start, this + timedelta(days=32))  # nothing is beyond now
    found = await visit.report().within(window, group_by=("period",))
    sums = {date.fromisoformat(period[:10]): usage for (period,), usage in found.items()}
    oldest = min(sums, default=firsts[0])
    return [
        Month(first, sums.get(first, Usage()), closed.get(first))
        for first in firsts
        if first >= oldest
    ]


async def _prices(visit: Visit, rows: Sequence[Price]) -> Sequence[Line]:
    """Of the base and of the organisation's own adapters; the newest of each, and those to come."""
    adapters = await NameRepository(visit.session, visit.organisation or None).adapters()
    found: dict[tuple[str, str], Line] = {}
    coming = []
    for row in sorted(rows, key=lambda each: (each.effective_from, each.created_at)):
        subject = row.base_model or adapters.get(row.adapter_id or "")
        if subject is None:
            continue  # another organisation's adapter
        line = Line(row, subject, row.effective_from > visit.now)
        if line.is_to_come:
            coming.append(line)
        else:
            found[subject, row.tier] = line
    return sorted([*found.values(), *coming], key=lambda each: (each.subject, each.row.tier))


BILLING = Page(
    path="/billing",
    title="Billing",
    section="Usage",
    icon="receipt",
    template="billing.html",
    show=billing,
)
