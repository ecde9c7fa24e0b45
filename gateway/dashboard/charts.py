"""A chart as data: what is drawn and the table beside it come from the same integers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from gateway.dashboard import numbers
from gateway.dashboard.timespan import Timespan

MOST_SERIES = 7  # and one for all others: more colours cannot be told apart
OTHER = "Other"
UNITS: dict[str, Callable[[int], str]] = {
    "usd": numbers.usd, "count": numbers.count, "tokens": numbers.count,
    "seconds": lambda nanoseconds: numbers.seconds(nanoseconds / 1e9),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    values: tuple[int | None, ...]  # one for each bucket; None: there is none
    is_rest: bool = False

    @property
    def total(self) -> int:
        return sum(value or 0 for value in self.values)


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    texts: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``kind``: bars, one upon another, or lines."""

    title: str
    unit: str  # of UNITS
    span: Timespan
    series: tuple[Series, ...]
    kind: str = "bars"
    summed: bool = True  # its total says something

    @property
    def is_empty(self) -> bool:
        return not any(value for each in self.series for value in each.values)

    @property
    def total(self) -> int:
        return sum(each.total for each in self.series)

    @property
    def total_text(self) -> str:
        return self.text(self.total) if self.summed else ""

    def text(self, value: int | None) -> str:
        return numbers.DASH if value is None else UNITS[self.unit](value)

    def rows(self, zone: ZoneInfo) -> list[Row]:
        """Buckets in which there was something."""
        return [
            Row(label_of(at, self.span, zone), [self.text(each.values[i]) for each in self.series])
            for i, at in enumerate(self.span.edges[:-1])
            if any(each.values[i] for each in self.series)
        ]

    def drawn(self, zone: ZoneInfo) -> dict[str, Any]:
        """For chart.js."""
        return {
            "unit": self.unit,
            "kind": self.kind,
            "zone": zone.key,
            "interval": self.span.interval,
            "edges": [int(at.timestamp()) for at in self.span.edges],
            "labels": [label_of(at, self.span, zone) for at in self.span.edges[:-1]],
            "series": [
                {"name": each.name, "values": each.values, "rest": each.is_rest}
                for each in self.series
            ],
        }


def label_of(at: datetime, span: Timespan, zone: ZoneInfo) -> str:
    local = at.astimezone(zone)
    if span.interval == "hour":
        return local.strftime("%a %-d %b %H:%M")
    if span.interval == "month":
        return local.strftime("%B %Y")
    return local.strftime("%a %-d %b %Y" if span.interval == "day" else "week of %-d %b %Y")


def ranked(
    buckets: Sequence[dict[str, int]],
    *,
    most: int = MOST_SERIES,
    named: Callable[[str], str] = str,
) -> tuple[Series, ...]:
    """The largest by their sums, and all others as one; nothing is left out."""
    sums: dict[str, int] = {}
    for bucket in buckets:
        for name, value in bucket.items():
            sums[name] = sums.get(name, 0) + value
    order = sorted(sums, key=lambda name: (-sums[name], name))
    first, rest = order[:most], order[most:]
    if len(rest) == 1:  # a name tells more than "other"
        first, rest = order, []
    series = [Series(named(name), tuple(each.get(name, 0) for each in buckets)) for name in first]
    if rest:
        values = tuple(sum(each.get(name, 0) for name in rest) for each in buckets)
        series.append(Series(f"{OTHER} ({len(rest)})", values, is_rest=True))
    return tuple(series)
