"""The time a page is about, cut into the hours or days of the viewer's zone.

Every edge lies on a quarter of an hour of UTC, as roll-ups do; so days of any zone that is in use
add up exactly, and a day is as long as it is there: 23 or 25 hours when clocks change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.errors import InvalidRequest
from gateway.usage.report import HOUR, Window

RANGES = {
    "24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days",
    "month": "This month", "last-month": "Last month",
}  # fmt: skip
CUSTOM = "custom"
INTERVALS = {"hour": "Hour", "day": "Day", "week": "Week", "month": "Month"}
MOST_DAYS = 400
MOST_EDGES = 1000
SLOT = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Timespan:
    name: str  # of RANGES, or custom
    first: date  # days of the zone; for custom ones
    last: date
    start: datetime  # in the zone
    end: datetime
    interval: str
    edges: tuple[datetime, ...]  # UTC; one more than there are buckets

    @property
    def window(self) -> Window:
        return Window(self.edges[0], self.edges[-1])

    @property
    def before(self) -> Window:
        """As long, up to the start."""
        return Window(self.edges[0] - (self.edges[-1] - self.edges[0]), self.edges[0])

    @property
    def label(self) -> str:
        if self.name in RANGES:
            return RANGES[self.name]
        return f"{self.first} to {self.last}"


def zone_named(name: str) -> ZoneInfo:
    """Raises InvalidRequest."""
    try:
        if (
            not 1 <= len(name) <= 64
            or name.startswith(("/", "."))
            or name in ("localtime", "posixrules")
        ):
            raise ZoneInfoNotFoundError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequest(f"zone {name[:64]!r} is no time zone, like UTC or Asia/Tokyo",
                             param="zone") from error  # fmt: skip


def timespan_of(
    query: Mapping[str, str], zone: ZoneInfo, now: datetime, *, default: str = "7d"
) -> Timespan:
    """``range``, or ``from`` and ``to`` (days, both included); ``interval``.

    Raises InvalidRequest.
    """
    today = now.astimezone(zone).date()
    name = query.get("range") or (CUSTOM if "from" in query else default)
    if name == CUSTOM:
        first, last = _day(query, "from"), _day(query, "to")
        if first > last:
            raise InvalidRequest("from must not be after to", param="from")
        if (last - first).days >= MOST_DAYS:
            raise InvalidRequest(f"at most {MOST_DAYS} days at once", param="from")
    elif name in RANGES:
        first, last = _named(name, today)
    else:
        known = ", ".join((*RANGES, CUSTOM))
        raise InvalidRequest(f"range {name[:16]!r}: one of {known}", param="range")
    if name == "24h":
        end = _up(now)
        start = _hour(end - 24 * HOUR)
    else:
        start, end = midnight(first, zone), midnight(last + timedelta(days=1), zone)
    interval = query.get("interval") or _fitting(end - start)
    if interval not in INTERVALS:
        raise InvalidRequest(f"interval {interval[:16]!r}: one of {', '.join(INTERVALS)}",
                             param="interval")  # fmt: skip
    edges = tuple(_edges(start, end, interval, zone))
    if len(edges) > MOST_EDGES:
        raise InvalidRequest(f"more than {MOST_EDGES} buckets: take a longer interval",
                             param="interval")  # fmt: skip
    return Timespan(name, first, last, start, end, interval, edges)


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """In UTC."""
    return _down(datetime.combine(day, time(), zone).astimezone(UTC))


def _named(name: str, today: date) -> tuple[date, date]:
    this_month = today.replace(day=1)
    if name == "month":
        return this_month, today
    if name == "last-month":
        last = this_month - timedelta(days=1)
        return last.replace(day=1), last
    days = {"24h": 2, "7d": 7, "30d": 30, "90d": 90}[name]
    return today - timedelta(days=days - 1), today


def _fitting(length: timedelta) -> str:
    return "hour" if length <= timedelta(days=2) else "day" if length.days <= 100 else "week"


def _edges(start: datetime, end: datetime, interval: str, zone: ZoneInfo) -> Iterator[datetime]:
    yield start
    at = start
    while (at := _next(at, interval, zone)) < end:
        yield at
    yield end


def _next(at: datetime, interval: str, zone: ZoneInfo) -> datetime:
    if interval == "hour":
        return at + HOUR
    day = at.astimezone(zone).date()
    if interval == "day":
        day += timedelta(days=1)
    elif interval == "week":
        day += timedelta(days=7 - day.weekday())
    else:
        day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return midnight(day, zone)


def _day(query: Mapping[str, str], name: str) -> date:
    text = query.get(name, "")
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} {text[:16]!r} is not a day like 2026-11-30", param=name
        ) from error
    if not 2000 <= found.year <= 2200:
        raise InvalidRequest(f"{name} {text}: from 2000 to 2200", param=name)
    return found


def _down(at: datetime) -> datetime:
    """Zones of long ago are off by odd minutes."""
    return at - (at - datetime(1970, 1, 1, tzinfo=UTC)) % SLOT


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _up(now: datetime) -> datetime:
    """The end of this hour."""
    return _hour(now) + HOUR
