"""The time a report is asked about: its buckets, and one page of them.

A page's cursor says where it begins and where all of them end, so that turning pages while time
goes on shows each bucket once.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.errors import InvalidRequest, MissingParameter
from gateway.usage.report import DAY, HOUR, MINUTE, Window, bucket_start

LATEST = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
WIDTHS = {"1m": MINUTE, "1h": HOUR, "1d": DAY}
_CURSOR = re.compile(r"page_(\d{1,12})_(\d{1,12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Size:
    """How many buckets a page has."""

    default: int
    most: int


@dataclass(frozen=True, slots=True)
class Span:
    """What one page shows."""

    window: Window
    width: timedelta
    next_page: str | None


def span_of(values: dict[str, str], sizes: dict[str, Size], now: datetime) -> Span:
    """Raises InvalidRequest."""
    width_name = values.get("bucket_width", "1d")
    if width_name not in WIDTHS:
        raise InvalidRequest(
            f"bucket_width {width_name[:16]!r}: 1m, 1h or 1d", param="bucket_width"
        )
    width, size = WIDTHS[width_name], sizes[width_name]
    if "start_time" not in values:
        raise MissingParameter("start_time must be given", param="start_time")
    start = _integer(values, "start_time", 0, LATEST)
    end = _integer(values, "end_time", 0, LATEST, default=int(now.timestamp()) + 1)
    if start >= end:
        raise InvalidRequest("start_time must be before end_time", param="start_time")
    count = _integer(values, "limit", 1, size.most, default=size.default)
    if "page" in values:
        start, end = _turned(values["page"], start)
    whole = Window(_time(start), _time(end))
    last = bucket_start(whole.start, width) + count * width
    if last >= whole.end:
        return Span(whole, width, None)
    return Span(Window(whole.start, last), width, f"page_{int(last.timestamp())}_{end}")


def _turned(cursor: str, first: int) -> tuple[int, int]:
    found = _CURSOR.fullmatch(cursor)
    if found is None or not first <= (start := int(found[1])) < (end := int(found[2])) <= LATEST:
        raise InvalidRequest("page is not a next_page of this query", param="page")
    return start, end


def _integer(
    values: dict[str, str], name: str, least: int, most: int, *, default: int | None = None
) -> int:
    text = values.get(name)
    if text is None and default is not None:
        return default
    if text is None or re.fullmatch(r"-?\d{1,19}", text, re.ASCII) is None:
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if not least <= (value := int(text)) <= most:
        raise InvalidRequest(f"{name} {value}: from {least} to {most}", param=name)
    return value


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
