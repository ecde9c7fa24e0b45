"""Corrects what was charged after a price was corrected: by adjustments, never by changing events.

A wrong price stays as it was; another from the same time on takes its place in the book. Each
request that had been priced differently gets an adjustment with the difference on each meter, in
its own month if that is open, else in the next open one. Doing it twice changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from hashlib import blake2b

from gateway.db import Database
from gateway.usage.event import Event, Kind, open_period
from gateway.usage.log import Position
from gateway.usage.models import UsageEvent
from gateway.usage.pricing import Cost, PriceBook, Tariff, billable, cost
from gateway.usage.record import Outcome
from gateway.usage.repository import OPERATOR_LOG, LedgerRepository

PAGE = 1000  # requests in one transaction


@dataclass(frozen=True, slots=True)
class Repriced:
    adjustments: int = 0
    cost_nano: int = 0  # what they add up to; negative where too much had been charged


class Repricing:
    """``now`` is when the adjustments are made."""

    def __init__(self, database: Database, now: datetime) -> None:
        self._database = database
        self._now = now

    async def run(
        self, start: datetime, end: datetime, watch: Callable[[int], None] = lambda seen: None
    ) -> Repriced:
        """Of all requests that began in [start, end). ``watch`` is told how many were seen."""
        done, last, seen = Repriced(), "", 0
        while True:
            async with self._database.unit_of_work() as session:
                rows = LedgerRepository(session)
                events = await rows.to_reprice(start, end, after=last, most=PAGE)
                if not events:
                    break
                last, seen = events[-1].id, seen + len(events)
                watch(seen)
                made = await self._adjust(rows, events)
                done = Repriced(
                    done.adjustments + len(made),
                    done.cost_nano + sum(each.cost_nano or 0 for each in made),
                )
        async with self._database.publish():
            """Counters of budgets are read from the ledger again."""
        return done

    async def _adjust(self, rows: LedgerRepository, events: Sequence[UsageEvent]) -> list[Event]:
        batch = await rows.move(OPERATOR_LOG, Position(0, 0))  # one at a time from here on
        book, closed = await rows.price_book(), await rows.hold_periods()
        history: dict[str, list[UsageEvent]] = {event.id: [event] for event in events}
        for adjustment in await rows.adjustments(list(history)):
            history[adjustment.corrects or ""].append(adjustment)
        made = [
            self._adjustment(charged, tariff, open_period(charged[0].period, closed))
            for charged in history.values()
            if (tariff := _right(book, charged[0])) and tariff.id != charged[-1].price_id
        ]
        await rows.add_events(made, OPERATOR_LOG, batch)
        return made

    def _adjustment(self, charged: Sequence[UsageEvent], tariff: Tariff, period: date) -> Event:
        """``charged``: the request and its earlier adjustments."""
        event, change = charged[0], _cost(charged[0], tariff)
        for each in charged:
            change -= _charged(each)
        name = blake2b(f"{event.id} {tariff.id}".encode(), digest_size=16).hexdigest()
        return Event(
            id=f"adj_{name}",
            day=event.day,
            slot=event.slot,
            period=period,
            kind=Kind.ADJUSTMENT,
            organisation_id=event.organisation_id,
            project_id=event.project_id,
            key_id=event.key_id,
            user_id=event.user_id,
            tier=event.tier,
            model=event.model,
            base_model=event.base_model,
            adapter_id=event.adapter_id,
            digest=event.digest,
            endpoint=event.endpoint,
            outcome=event.outcome,
            finish_reason=None,
            price_id=tariff.id,
            cost_nano=change.total,
            input_nano=change.input,
            cached_nano=change.cached_input,
            output_nano=change.output,
            corrects=event.id,
            corrected_price=charged[-1].price_id,
            started_at=event.started_at,
            finished_at=self._now,
        )


def _right(book: PriceBook, event: UsageEvent) -> Tariff | None:
    """The price that holds for it as the book is by now."""
    return book.at(event.base_model, event.adapter_id, event.started_at, event.tier)


def _cost(event: UsageEvent, tariff: Tariff) -> Cost:
    tokens = billable(
        Outcome(event.outcome),
        prompt=event.prompt_tokens,
        cached=event.cached_tokens,
        completion=event.completion_tokens,
    )
    return cost(tariff, tokens)


def _charged(event: UsageEvent) -> Cost:
    return Cost(input=event.input_nano, cached_input=event.cached_nano, output=event.output_nano)
