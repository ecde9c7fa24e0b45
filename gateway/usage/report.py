"""Usage and costs by time and by group, equal to the ledger to the token and the nano-dollar.

    report = UsageReport(session, organisation)  # all its projects; or one: project=...
    for bucket in await report.buckets(window, DAY, group_by=("project_id", "model")):
        for line in bucket.lines:
            line.group, line.usage.requests, line.usage.cost.total

Buckets begin at multiples of their width since the epoch, so days are UTC days. Widths of a
quarter of an hour and more are read from the roll-ups and the events not yet in them, shorter
ones from the events alone. What an event has not (an adapter, a customer) is "" in a group.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import InvalidRequest
from gateway.usage.event import EPOCH
from gateway.usage.pricing import NO_COST, Cost
from gateway.usage.report_repository import SLOT, Only, ReportRepository, Window
from gateway.usage.rollup_repository import SUMS

__all__ = [
    "DAY",
    "EVER",
    "HOUR",
    "MINUTE",
    "SPEND",
    "Bucket",
    "Largest",
    "Line",
    "Only",
    "Usage",
    "UsageReport",
    "Window",
    "bucket_start",
]

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EVERYTHING = Only()
SPEND = ("input_nano", "cached_nano", "output_nano", "storage_nano")
EVER = Window(EPOCH, datetime(9999, 1, 1, tzinfo=UTC))

Group = Literal[
    "project_id", "key_id", "user_id", "tier", "model", "base_model", "adapter_id", "endpoint",
    "price_id", "period", "organisation_id",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums over events. Adjustments and storage have costs, and are no requests."""

    events: int = 0
    requests: int = 0
    unpriced: int = 0  # requests that have no price, and so no cost
    prompt_tokens: int = 0
    cached_tokens: int = 0  # part of prompt_tokens
    completion_tokens: int = 0
    storage_byte_hours: int = 0
    cost: Cost = NO_COST

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            events=self.events + other.events,
            requests=self.requests + other.requests,
            unpriced=self.unpriced + other.unpriced,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            storage_byte_hours=self.storage_byte_hours + other.storage_byte_hours,
            cost=self.cost + other.cost,
        )


NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class Line:
    group: tuple[str, ...]  # values, in the order of ``group_by``
    usage: Usage


@dataclass(frozen=True, slots=True)
class Largest:
    """Of ``groups`` groups those that come first, and the sum of all."""

    lines: list[tuple[str, Usage]] = field(default_factory=list)
    groups: int = 0
    whole: Usage = NOTHING


@dataclass(frozen=True, slots=True)
class Bucket:
    """What began in [start, end) and in the window; no lines where there was nothing."""

    start: datetime
    end: datetime
    lines: list[Line] = field(default_factory=list)


class UsageReport:
    """Belongs to a session, and sees one organisation, or one project of it; None: all there are,
    for operators."""

    def __init__(
        self, session: AsyncSession, organisation: str | None, project: str | None = None
    ) -> None:
        self._rows = ReportRepository(session, organisation, project)

    async def buckets(
        self,
        window: Window,
        width: timedelta,
        *,
        group_by: Sequence[Group] = (),
        only: Only = EVERYTHING,
    ) -> list[Bucket]:
        """One bucket for every step of the window, in order. Raises InvalidRequest."""
        _check(window, width)
        rows = await self._rows.lines(window, group_by, only, width=width)
        found: dict[datetime, dict[tuple[str, ...], Usage]] = {}
        for slot, group, usage in _parsed(rows, len(group_by)):
            lines = found.setdefault(bucket_start(slot, width), {})
            lines[group] = lines.get(group, NOTHING) + usage
        return [
            Bucket(start, start + width, [Line(*line) for line in sorted(lines.items(), key=_name)])
            for start in _steps(window, width)
            for lines in (found.get(start, {}),)
        ]

    async def between(
        self,
        edges: Sequence[datetime],
        *,
        group_by: Sequence[Group] = (),
        only: Only = EVERYTHING,
    ) -> list[dict[tuple[str, ...], Usage]]:
        """Sums by group for each pair of neighbours of ``edges``, which lie on quarters of an hour
        and need not be equally far apart: the days of a zone, say."""
        found: list[dict[tuple[str, ...], Usage]] = [{} for _ in edges[1:]]
        rows = await self._rows.between(edges, group_by, only)
        for slot, group, usage in _parsed(rows, len(group_by)):
            lines = found[bisect_right(edges, slot) - 1]
            lines[group] = lines.get(group, NOTHING) + usage
        return found

    async def within(
        self, window: Window, *, group_by: Sequence[Group] = (), only: Only = EVERYTHING
    ) -> dict[tuple[str, ...], Usage]:
        """Sums by group of a window whose ends lie on quarters of an hour: as ``lines`` says, but
        added up by the database."""
        edges = [window.start, window.end]
        return (await self.between(edges, group_by=group_by, only=only))[0]

    async def largest(
        self,
        window: Window,
        group: Group,
        *,
        by: Sequence[Sequence[str]],
        most: int,
        only: Only = EVERYTHING,
    ) -> Largest:
        """The groups of a window on quarters of an hour that have the most, chosen by the database.

        Args:
            by: names of sums to be added up, ``SPEND`` for one; where two groups have as many the
                next decides, and in the end their names.
        """
        rows = await self._rows.largest(window, group, by, most, only)
        if not rows:
            return Largest()
        lines = [(str(name), _usage(values[: len(SUMS)])) for name, *values in rows]
        count, *whole = rows[0][1 + len(SUMS) :]
        return Largest(lines, count, _usage(whole))

    async def lines(
        self, window: Window, group_by: Sequence[Group], *, only: Only = EVERYTHING
    ) -> list[Line]:
        """The whole window as one bucket."""
        lines: dict[tuple[str, ...], Usage] = {}
        for _, group, usage in _parsed(
            await self._rows.lines(window, group_by, only), len(group_by)
        ):
            lines[group] = lines.get(group, NOTHING) + usage
        return [Line(*line) for line in sorted(lines.items(), key=_name)]

    async def total(self, window: Window, *, only: Only = EVERYTHING) -> Usage:
        lines = await self.lines(window, (), only=only)
        return lines[0].usage if lines else NOTHING


def _check(window: Window, width: timedelta) -> None:
    if window.start >= window.end:
        raise InvalidRequest("start_time must be before end_time", param="start_time")
    if width < MINUTE or width % MINUTE or (width > SLOT and width % SLOT) or DAY % width:
        raise InvalidRequest(f"bucket_width {width} is not offered", param="bucket_width")


def _parsed(rows: Sequence[Any], groups: int) -> Iterator[tuple[datetime, tuple[str, ...], Usage]]:
    for slot, *values in rows:
        yield _aware(slot), tuple(map(str, values[:groups])), _usage(values[groups:])


def _usage(values: Sequence[Any]) -> Usage:
    """Of ``SUMS``, in their order."""
    sums = dict(zip(SUMS, map(int, values), strict=True))
    cost = Cost(
        input=sums.pop("input_nano"),
        cached_input=sums.pop("cached_nano"),
        output=sums.pop("output_nano"),
        storage=sums.pop("storage_nano"),
    )
    return Usage(**sums, cost=cost)


def _aware(time: datetime | str) -> datetime:
    """SQLite gives computed times as text."""
    parsed = datetime.fromisoformat(time) if isinstance(time, str) else time
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def bucket_start(time: datetime, width: timedelta) -> datetime:
    return time - (time - EPOCH) % width


def _steps(window: Window, width: timedelta) -> Iterator[datetime]:
    start = bucket_start(window.start, width)
    while start < window.end:
        yield start
        start += width


def _name(line: tuple[tuple[str, ...], Usage]) -> tuple[str, ...]:
    return line[0]
