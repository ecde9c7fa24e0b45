"""Calendar periods in a time zone. A period's id is part of its counters' names: nothing resets."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.errors import InvalidRequest

DAY, MONTH = "day", "month"


@dataclass(frozen=True, slots=True)
class Period:
    """Half open: [start, end), as points in time."""

    id: str  # 2026-12-01 or 2026-12, as the zone's calendar says
    start: datetime
    end: datetime
    ends_ms: int


@lru_cache(64)
def zone(name: str) -> ZoneInfo:
    """Raises InvalidRequest."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"time_zone {name[:64]!r} is not known; write for example Europe/Zurich",
            param="time_zone",
        ) from error


def period_at(now: datetime, kind: str, time_zone: str) -> Period:
    """The period that holds ``now``. Days have 23 to 25 hours, months 28 to 31 days."""
    return _of_minute(int(now.timestamp()) // 60, kind, time_zone)


@lru_cache(1024)
def _of_minute(minute: int, kind: str, time_zone: str) -> Period:
    """Every request asks, and no zone's midnight is within a minute."""
    local = datetime.fromtimestamp(minute * 60, zone(time_zone))
    first = datetime(local.year, local.month, local.day if kind == DAY else 1)
    following = first + timedelta(days=1)
    if kind == MONTH:
        following = (first + timedelta(days=32)).replace(day=1)
    start, end = (day.replace(tzinfo=zone(time_zone)).astimezone(UTC) for day in (first, following))
    name = f"{first:%Y-%m-%d}" if kind == DAY else f"{first:%Y-%m}"
    return Period(name, start, end, int(end.timestamp() * 1000))


def period_of(period_id: str, time_zone: str) -> Period:
    """By its id. Raises ValueError."""
    kind = DAY if period_id.count("-") == 2 else MONTH
    first = datetime.fromisoformat(period_id if kind == DAY else f"{period_id}-01")
    return period_at(first.replace(hour=12, tzinfo=zone(time_zone)), kind, time_zone)
