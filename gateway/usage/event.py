"""One line of the ledger, and how a request's two records become one. Pure.

An event is a request, an adjustment of one after its price was corrected, or a day's storage of
an adapter. Its times are exact; ``slot`` is the quarter of an hour it belongs to, ``day`` the
partition, ``period`` the month it is billed in: its own, or the first open one if that is closed.
"""

from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

import msgspec

from gateway.usage.pricing import NO_COST, Cost, PriceBook, billable, cost
from gateway.usage.record import Finished, Started

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLOT_S = 900
SLOT_NS = SLOT_S * 10**9


class Kind(StrEnum):
    USAGE = "usage"
    ADJUSTMENT = "adjustment"
    STORAGE = "storage"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the columns of ``usage_event``, in their order."""

    id: str
    day: date
    slot: datetime
    period: date  # first day of the month it is billed in
    kind: Kind = Kind.USAGE
    organisation_id: str
    project_id: str
    key_id: str
    user_id: str = ""
    tier: str = "default"
    model: str
    base_model: str
    adapter_id: str | None
    digest: str | None
    endpoint: str
    outcome: str
    finish_reason: str | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    storage_byte_hours: int = 0
    price_id: str | None
    cost_nano: int | None  # the sum of the next four; None: unpriced, never 0
    input_nano: int = 0
    cached_nano: int = 0
    output_nano: int = 0
    storage_nano: int = 0
    corrects: str | None = None  # the event an adjustment is about
    corrected_price: str | None = None  # what that had been priced by so far
    engine: str = ""
    boot: str = ""
    recovered: bool = False
    started_at: datetime
    finished_at: datetime
    first_ns: int = 0  # from admission to the first tokens; 0: there were none
    token_ns: int = 0  # the mean from one token of a choice to the next; 0: there was no next
    log: str = ""
    batch: int = 0


def time_of(ns: int) -> datetime:
    return EPOCH + timedelta(microseconds=ns // 1000)


def slot_of(ns: int) -> datetime:
    return EPOCH + timedelta(seconds=ns // SLOT_NS * SLOT_S)


def month_of(day: date) -> date:
    return day.replace(day=1)


def next_month(month: date) -> date:
    return month_of(month + timedelta(days=31))


def open_period(day: date, closed: AbstractSet[date]) -> date:
    """The month of that day, or the first after it that is not closed."""
    period = month_of(day)
    while period in closed:
        period = next_month(period)
    return period


def event_of(
    started: Started,
    finished: Finished,
    book: PriceBook,
    *,
    closed: AbstractSet[date] = frozenset(),
    recovered: bool = False,
) -> Event:
    """The price is the one by which the request was admitted: one that was set a moment before
    may not have been known there yet. Older records do not say it: then the one in force."""
    begun = time_of(started.at_ns)
    day = begun.date()
    prompt = max(0, finished.prompt_tokens)
    cached = min(max(0, finished.cached_tokens), prompt)
    completion = max(0, finished.completion_tokens)
    tariff = book.by_id(started.price) or book.at(
        started.base_model, started.adapter_id, begun, started.tier
    )
    tokens = billable(finished.outcome, prompt=prompt, cached=cached, completion=completion)
    charge: Cost = cost(tariff, tokens) if tariff else NO_COST
    return Event(
        id=started.request,
        day=day,
        slot=slot_of(started.at_ns),
        period=open_period(day, closed),
        organisation_id=started.organisation,
        project_id=started.project,
        key_id=started.key,
        user_id=started.user[:256],
        tier=started.tier[:16],
        model=started.model[:256],
        base_model=started.base_model[:256],
        adapter_id=started.adapter_id,
        digest=started.digest,
        endpoint=started.endpoint,
        outcome=finished.outcome,
        finish_reason=finished.finish_reason,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        price_id=tariff.id if tariff else None,
        cost_nano=charge.total if tariff else None,
        input_nano=charge.input,
        cached_nano=charge.cached_input,
        output_nano=charge.output,
        engine=finished.engine[:128],
        boot=finished.boot[:64],
        recovered=recovered,
        started_at=begun,
        finished_at=time_of(finished.at_ns),
        first_ns=max(0, finished.first_ns),
        token_ns=max(0, finished.token_ns),
    )
