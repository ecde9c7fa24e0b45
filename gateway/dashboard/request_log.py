"""Requests as people ask for them: what was admitted, from the ledger, and what was refused, by
kind and minute, in one order, the newest first. A page begins after a place in it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import InvalidRequest
from gateway.refusals.models import Refusal
from gateway.refusals.repository import RefusalRepository, WantedRefusals
from gateway.usage.event import EPOCH
from gateway.usage.models import UsageEvent
from gateway.usage.record import Outcome
from gateway.usage.report_repository import Window
from gateway.usage.request_repository import Place, RequestRepository, Wanted

MOST_TEXT = 256
AT_ONCE = 100
# In the address -> the column.
FILTERS = {
    "project": "project_id", "key": "key_id", "model": "model", "customer": "user_id",
    "endpoint": "endpoint",
}  # fmt: skip
OUTCOMES = tuple(map(str, Outcome))
ADMITTED, REFUSED = "admitted", "refused"
CODES = tuple(
    map(
        int,
        (
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.FORBIDDEN,
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.INTERNAL_SERVER_ERROR,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    )
)
STATUSES = (ADMITTED, *OUTCOMES, REFUSED, *map(str, CODES))
Entry = UsageEvent | Refusal


@dataclass(frozen=True, slots=True)
class Sought:
    """None: nothing of that kind."""

    admitted: Wanted | None
    refused: WantedRefusals | None


def sought(query: Mapping[str, str], window: Window) -> Sought:
    """Raises InvalidRequest."""
    given: dict[str, Any] = {
        column: text[:MOST_TEXT]
        for name, column in FILTERS.items()
        if (text := query.get(name, "").strip())
    }
    status = query.get("status", "").strip()
    if status and status not in STATUSES:
        known = ", ".join(STATUSES)
        raise InvalidRequest(f"status {status[:24]!r}: one of {known}", param="status")
    admitted = Wanted(window=window, **given)
    # A refusal knows no customer: it is counted with others.
    refused = None
    if "user_id" not in given:
        refused = WantedRefusals(start=window.start, end=window.end, **given)
    if status == ADMITTED:
        return Sought(admitted, None)
    if status in OUTCOMES:
        return Sought(replace(admitted, outcome=status), None)
    if status == REFUSED:
        return Sought(None, refused)
    if status:
        return Sought(None, replace(refused, status=int(status)) if refused else None)
    return Sought(admitted, refused)


class RequestLog:
    """Of one organisation."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self.requests = RequestRepository(session, organisation)
        self.refusals = RefusalRepository(session, organisation)

    async def newest_first(
        self, most: int, what: Sought, *, after: Place | None = None
    ) -> list[Entry]:
        found: list[Entry] = []
        if what.admitted is not None:
            found += await self.requests.newest_first(most, what.admitted, after=after)
        if what.refused is not None:
            place = (after.started_at, after.id) if after else None
            found += await self.refusals.newest_first(most, what.refused, after=place)
        return sorted(found, key=_order, reverse=True)[:most]

    async def pieces(
        self, most: int, what: Sought, *, after: Place | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        """The same of very many, a few at a time: requests of clients go on in between."""
        while most > 0 and (
            found := await self.newest_first(min(most, AT_ONCE), what, after=after)
        ):
            yield found
            most -= len(found)
            after = Place(began(found[-1]), found[-1].id)


def began(entry: Entry) -> datetime:
    return entry.started_at if isinstance(entry, UsageEvent) else entry.first_at


def _order(entry: Entry) -> tuple[datetime, str]:
    return began(entry), entry.id


def written(entry: Entry) -> str:
    """A place as the address says it: microseconds and the id."""
    return f"{(began(entry) - EPOCH) // timedelta(microseconds=1)}.{entry.id}"


def place_of(text: str) -> Place:
    """Raises InvalidRequest."""
    micros, _, entry = text.partition(".")
    if not (micros.isascii() and micros.isdigit() and len(micros) <= 16 and 0 < len(entry) <= 64):
        raise InvalidRequest(f"before {text[:24]!r} is no place in this log", param="before")
    try:
        at: datetime = EPOCH + timedelta(microseconds=int(micros))
    except OverflowError as error:
        raise InvalidRequest("before lies beyond all time", param="before") from error
    return Place(at, entry)
