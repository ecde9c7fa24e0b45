"""``/dashboard``: what was used and spent, and by whom. Every number is a sum over the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.dashboard import numbers
from gateway.dashboard.charts import Figure, Series, ranked
from gateway.dashboard.names import Names
from gateway.dashboard.page import Page
from gateway.dashboard.timespan import RANGES, Timespan, timespan_of
from gateway.dashboard.visit import Visit
from gateway.usage.pace import FAILURES, FIRST, TOKEN, quantile
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.report import SPEND, Group, Usage, Window

MOST_LINES = 6
Sums = Mapping[tuple[str, ...], Usage]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    usage: Usage
    href: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Who spent most; ``what`` heads the column of names."""

    title: str
    what: str
    lines: list[Line]

    @property
    def most(self) -> int:
        return max((line.usage.cost.total for line in self.lines), default=0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast answers came: seconds, None where nothing was counted."""

    ended: int
    failed: int
    first: tuple[float | None, float | None]  # P50, P99
    token: tuple[float | None, float | None]

    @property
    def tone(self) -> str:
        return "warn" if self.failed * 100 > self.ended else ""


async def overview(visit: Visit) -> dict[str, Any]:
    span = timespan_of(visit.query, visit.days_zone, visit.now)
    report = visit.report()
    owner: Group = "project_id" if visit.organisation else "organisation_id"
    buckets = await report.between(span.edges, group_by=("model",))
    owners = await report.largest(span.window, owner, by=(SPEND, ("requests",)), most=MOST_LINES)
    models = _by(*buckets)
    usage = sum(models.values(), Usage())
    names = await Names.among(visit, [name for name, _ in owners.lines])
    return {
        "span": span,
        "ranges": RANGES,
        "usage": usage,
        "before": sum((await report.within(span.before)).values(), Usage()),
        "unpriced_note": _unpriced(usage),
        "spend": _spend(span, buckets),
        "requests": _requests(span, buckets),
        "tokens": _tokens(span, buckets),
        "pace": await _pace(visit, span.window),
        "rankings": [
            Ranking("Projects" if visit.organisation else "Organisations", "Name", [
                Line(names.of_owner(name), used, names.href(name))
                for name, used in owners.lines
            ]),
            Ranking("Models", "Name", [Line(name, used) for name, used in _first(models)]),
        ],
    }  # fmt: skip


async def _pace(visit: Visit, window: Window) -> Pace:
    rows = PaceRepository(visit.session, visit.organisation or None)
    found = await rows.counts(window)
    first, token = found.pop(FIRST, {}), found.pop(TOKEN, {})
    ended = {kind: sum(steps.values()) for kind, steps in found.items()}
    return Pace(
        ended=sum(ended.values()),
        failed=sum(ended.get(kind, 0) for kind in FAILURES),
        first=(quantile(first, 0.5), quantile(first, 0.99)),
        token=(quantile(token, 0.5), quantile(token, 0.99)),
    )


def _by(*buckets: Sums) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for bucket in buckets:
        for (name,), usage in bucket.items():
            found[name] = found.get(name, Usage()) + usage
    return found


def _first(lines: Mapping[str, Usage]) -> list[tuple[str, Usage]]:
    def place(line: tuple[str, Usage]) -> tuple[int, int, str]:
        return -line[1].cost.total, -line[1].requests, line[0]

    return sorted(lines.items(), key=place)[:MOST_LINES]


def _unpriced(usage: Usage) -> str:
    return f"{numbers.count(usage.unpriced)} without a price" if usage.unpriced else ""


def _spend(span: Timespan, buckets: Sequence[Sums]) -> Figure:
    by_model = [{name: usage.cost.total for (name,), usage in bucket.items()} for bucket in buckets]
    return Figure(title="Spend by model", unit="usd", span=span, series=ranked(by_model))


def _requests(span: Timespan, buckets: Sequence[Sums]) -> Figure:
    values = tuple(sum(each.requests for each in bucket.values()) for bucket in buckets)
    series = (Series("Requests", values),)
    return Figure(title="Requests", unit="count", span=span, series=series)


def _tokens(span: Timespan, buckets: Sequence[Sums]) -> Figure:
    sums = [sum(bucket.values(), Usage()) for bucket in buckets]
    series = (
        Series("Input", tuple(each.uncached_tokens for each in sums)),
        Series("Cached input", tuple(each.cached_tokens for each in sums)),
        Series("Output", tuple(each.completion_tokens for each in sums)),
    )
    return Figure(title="Tokens", unit="tokens", span=span, series=series)


OVERVIEW = Page(
    path="",
    title="Overview",
    section="Usage",
    icon="grid",
    template="overview.html",
    show=overview,
)
