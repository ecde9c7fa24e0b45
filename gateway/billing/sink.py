"""What all billing systems have in common: how usage is told, and what their answers mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

import httpx2

from gateway.billing.models import SinkDelivery


class Meaning(StrEnum):
    TAKEN = "taken"  # counted, now or before: what it has seen already it has
    LATER = "later"  # certainly not counted; worth another try
    REFUSED = "refused"  # certainly not counted, and never will be
    UNKNOWN = "unknown"  # it may have been counted


@dataclass(frozen=True, slots=True)
class Verdict:
    meaning: Meaning
    detail: str = ""  # never a secret
    wait: timedelta | None = None  # as the sink asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a range of the ledger comes to in a quarter of an hour."""

    organisation_id: str
    project_id: str
    base_model: str
    adapter_id: str
    at: datetime
    sums: Mapping[str, int]  # by meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """One delivery in the making: fixed from here on, but for whose it is called there."""

    organisation_id: str
    meter: str
    at: datetime
    quantity: int
    data: str = "{}"


class Sink(Protocol):
    """Belongs to one event loop. ``window``: how long it knows a delivery's id again, with room
    to spare; after that nothing is sent that may have been taken."""

    @property
    def name(self) -> str: ...
    @property
    def window(self) -> timedelta: ...
    @property
    def needs_customer(self) -> bool: ...
    def amounts(self, usage: Sequence[Usage], now: datetime) -> list[Amount]: ...
    def payload(self, id: str, amount: Amount, customer: str) -> str: ...
    async def send(self, client: httpx2.AsyncClient, delivery: SinkDelivery) -> Verdict: ...
    async def counted(
        self, client: httpx2.AsyncClient, doubtful: SinkDelivery, beside: Sequence[SinkDelivery]
    ) -> bool | None:
        """Whether the sink has it. ``beside``: what else was sent for the same hour, taken or in
        doubt. None: that cannot be told. Raises httpx2.HTTPError."""
        ...


def wait_of(answer: httpx2.Response) -> timedelta | None:
    """By its Retry-After, in seconds."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return timedelta(seconds=min(max(seconds, 0.0), 3600.0))


def failure(answer: httpx2.Response) -> Verdict:
    """What a status means that is no success, where the sink has no rule of its own."""
    status = answer.status_code
    said = str(status)
    if status == 429:
        return Verdict(Meaning.LATER, said, wait_of(answer))
    if status in (401, 403, 404):  # our configuration: an operator mends it
        return Verdict(Meaning.LATER, f"{said}: see the sink's address and token")
    if status >= 500 or status in (408, 409):
        return Verdict(Meaning.UNKNOWN, said, wait_of(answer))
    return Verdict(Meaning.REFUSED, said)
