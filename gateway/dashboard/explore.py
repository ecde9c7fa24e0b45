"""``/dashboard/explore``: one metric by one group over time. The address holds all of its state.

The largest groups are told apart and all others are one, so that what is shown adds up to the
whole; the file (``format=csv``) has every group and every metric.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from starlette.responses import Response

from gateway.dashboard.charts import MOST_SERIES, OTHER, UNITS, Figure, Series
from gateway.dashboard.names import Names
from gateway.dashboard.page import Content, Page
from gateway.dashboard.sheet import csv_answer
from gateway.dashboard.timespan import INTERVALS, RANGES, timespan_of
from gateway.dashboard.visit import Visit
from gateway.errors import InvalidRequest
from gateway.usage.report import SPEND, Group, Largest, Only, Usage, UsageReport, Window

NONE = "none"
TOPS = (3, 5, MOST_SERIES)
SHAPES = {"bars": "Bars", "lines": "Lines", "sum": "Sum so far"}
MOST_LINES = 100


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    of: Callable[[Usage], int]
    sums: tuple[str, ...]  # what the database adds up for the same number


METRICS = {
    "spend": Metric("Spend", "usd", lambda usage: usage.cost.total, SPEND),
    "requests": Metric("Requests", "count", lambda usage: usage.requests, ("requests",)),
    "input": Metric("Tokens in", "tokens", lambda usage: usage.prompt_tokens, ("prompt_tokens",)),
    "cached": Metric(
        "Cached tokens in", "tokens", lambda usage: usage.cached_tokens, ("cached_tokens",)
    ),
    "output": Metric(
        "Tokens out", "tokens", lambda usage: usage.completion_tokens, ("completion_tokens",)
    ),
    "tokens": Metric(
        "All tokens",
        "tokens",
        lambda usage: usage.prompt_tokens + usage.completion_tokens,
        ("prompt_tokens", "completion_tokens"),
    ),
    "unpriced": Metric(
        "Requests without a price", "count", lambda usage: usage.unpriced, ("unpriced",)
    ),
}
GROUPS: Mapping[str, tuple[str, Group | None]] = {
    NONE: ("nothing", None),
    "model": ("model", "model"),
    "project": ("project", "project_id"),
    "key": ("key", "key_id"),
    "customer": ("customer", "user_id"),
    "adapter": ("adapter version", "adapter_id"),
    "endpoint": ("endpoint", "endpoint"),
    "tier": ("service tier", "tier"),
    "organisation": ("organisation", "organisation_id"),
}
FILTERS: Mapping[str, Group] = {"project": "project_id", "model": "model", "key": "key_id"}
COLUMNS = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "spend_usd",
           "spend_nano_usd", "unpriced_requests")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for."""

    metric: str
    by: str
    top: int
    shape: str
    only: Only

    @property
    def groups(self) -> tuple[Group, ...]:
        column = GROUPS[self.by][1]
        return () if column is None else (column,)


async def explore(visit: Visit) -> Content:
    question = question_of(visit)
    span = timespan_of(visit.query, visit.days_zone, visit.now, default="30d")
    report = visit.report()
    if visit.query.get("format") == "csv":
        buckets = await report.between(span.edges, group_by=question.groups, only=question.only)
        named = await (await Names.of(visit)).namer(question.by)
        return _csv(question, visit, span.edges, buckets, named)
    metric = METRICS[question.metric]
    largest = await _largest(report, question, span.window)
    names = await _names(visit, question, largest)
    named = await names.namer(question.by)
    series = await _series(report, question, span.edges, largest, named)
    models = sorted(name for (name,) in await report.within(span.window, group_by=("model",)))
    return {
        "question": question, "span": span, "ranges": RANGES, "intervals": INTERVALS,
        "metrics": {key: each.name for key, each in METRICS.items()},
        "groups": _offered(visit), "tops": TOPS, "shapes": SHAPES,
        "figure": Figure(
            title=metric.name + (f" by {GROUPS[question.by][0]}" if question.by != NONE else ""),
            unit=metric.unit, span=span, series=_shaped(series, question.shape),
            kind="bars" if question.shape == "bars" else "lines", summed=question.shape != "sum",
        ),
        "lines": [(named(name), usage, metric.of(usage)) for name, usage in largest.lines],
        "left_out": largest.groups - len(largest.lines),
        "total": largest.whole,
        "most": max((metric.of(usage) for _, usage in largest.lines), default=0),
        "whole": metric.of(largest.whole),
        "text": UNITS[metric.unit],
        "project_choices": _projects(visit, names),
        "model_choices": [(each, each) for each in models],
    }  # fmt: skip


def question_of(visit: Visit) -> Question:
    """Raises InvalidRequest."""
    query = visit.query
    offered = _offered(visit)
    return Question(
        metric=_choice(query, "metric", METRICS, "spend"),
        by=_choice(query, "by", offered, "model"),
        top=int(_choice(query, "top", [str(top) for top in TOPS], str(TOPS[-1]))),
        shape=_choice(query, "shape", SHAPES, "bars"),
        only=Only(**{
            column: (query[name],) for name, column in FILTERS.items() if query.get(name)
        }),
    )  # fmt: skip


async def _names(visit: Visit, question: Question, largest: Largest) -> Names:
    told = question.by in ("organisation", "project")
    ids = [name for name, _ in largest.lines] if told else []
    return await Names.among(visit, [*ids, *question.only.project_id])


def _projects(visit: Visit, names: Names) -> list[tuple[str, str]]:
    """An organisation's; those of all are too many to choose from, and there organisations come
    first."""
    if visit.organisation:
        return sorted(names.projects.items(), key=lambda choice: choice[1])
    chosen = visit.query.get("project")
    return [(chosen, names.of_owner(chosen))] if chosen else []


def _offered(visit: Visit) -> dict[str, str]:
    """Organisations are told apart where there are several; what is their own, keys and customers,
    within one of them."""
    left_out = ("organisation",) if visit.organisation else ("key", "customer")
    return {key: name for key, (name, _) in GROUPS.items() if key not in left_out}


def _choice(query: Mapping[str, str], name: str, known: Sequence[str] | Mapping[str, Any],
            default: str) -> str:  # fmt: skip
    value = query.get(name) or default
    if value not in known:
        raise InvalidRequest(f"{name} {value[:24]!r}: one of {', '.join(known)}", param=name)
    return value


def _key(group: tuple[str, ...]) -> str:
    return group[0] if group else ""


def _shaped(series: Sequence[Series], shape: str) -> tuple[Series, ...]:
    if shape != "sum":
        return tuple(series)
    return tuple(Series(each.name, tuple(_running(each.values)), each.is_rest) for each in series)


def _running(values: Sequence[int | None]) -> list[int]:
    sums = [0]
    for value in values:
        sums.append(sums[-1] + (value or 0))
    return sums[1:]


async def _series(
    report: UsageReport,
    question: Question,
    edges: Sequence[datetime],
    largest: Largest,
    named: Callable[[str], str],
) -> tuple[Series, ...]:
    """The largest, and all others as one: of those, however many they are, only sums are read."""
    metric, only = METRICS[question.metric], question.only
    several = question.top + (largest.groups == question.top + 1)  # one alone is no "others"
    first = [name for name, _ in largest.lines[:several]]
    if (column := GROUPS[question.by][1]) is not None:
        only = replace(only, **{column: tuple(first)})
    if not first:
        return ()
    found = await report.between(edges, group_by=question.groups, only=only)
    values = [{_key(group): metric.of(usage) for group, usage in each.items()} for each in found]
    if question.by == NONE:
        return (Series(metric.name, tuple(each.get("", 0) for each in values)),)
    shown = [Series(named(each), tuple(v.get(each, 0) for v in values)) for each in first]
    if len(first) < largest.groups:
        wholes = await report.between(edges, only=question.only)
        rest = tuple(
            sum(map(metric.of, whole.values())) - sum(part.values())
            for whole, part in zip(wholes, values, strict=True)
        )
        shown.append(Series(f"{OTHER} ({largest.groups - len(first)})", rest, is_rest=True))
    return tuple(shown)


async def _largest(report: UsageReport, question: Question, window: Window) -> Largest:
    column, only = GROUPS[question.by][1], question.only
    if column is None:
        whole = (await report.within(window, only=only)).get(())
        return Largest() if whole is None else Largest([("", whole)], 1, whole)
    by = (METRICS[question.metric].sums,)
    return await report.largest(window, column, by=by, most=MOST_LINES, only=only)


def _csv(
    question: Question,
    visit: Visit,
    edges: Sequence[Any],
    buckets: Sequence[Mapping[tuple[str, ...], Usage]],
    named: Callable[[str], str],
) -> Response:
    grouped = () if question.by == NONE else (f"{question.by}_id", question.by)
    rows: list[list[object]] = [["start", "end", *grouped, *COLUMNS]]
    for start, end, bucket in zip(edges, edges[1:], buckets, strict=False):
        when = [at.astimezone(visit.days_zone).isoformat() for at in (start, end)]
        for group, usage in sorted(bucket.items()):
            nano = usage.cost.total
            who = [] if question.by == NONE else [_key(group), named(_key(group))]
            rows.append([
                *when, *who, usage.requests, usage.prompt_tokens, usage.cached_tokens,
                usage.completion_tokens, f"{Decimal(nano).scaleb(-9):.9f}", nano,
                usage.unpriced,
            ])  # fmt: skip
    return csv_answer("usage", rows)


EXPLORE = Page(
    path="/explore",
    title="Explore",
    section="Usage",
    icon="explore",
    template="explore.html",
    show=explore,
)
