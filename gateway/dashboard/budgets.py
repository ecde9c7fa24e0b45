"""``/dashboard/budgets``: what may be spent, what was, what it will be; and who is told of it.

A budget's period is that of its own zone; alerts are of months of UTC, as they are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from gateway.dashboard.budget_actions import ACTIONS
from gateway.dashboard.charts import Figure, Series
from gateway.dashboard.forecast import LOOK_BACK, Forecast, forecast, reached_on
from gateway.dashboard.names import Names
from gateway.dashboard.page import Page
from gateway.dashboard.quotas import named, names_of
from gateway.dashboard.timespan import Timespan, midnight
from gateway.dashboard.visit import Visit
from gateway.limits.models import Level, SpendAlert
from gateway.limits.period import MONTH, Period, period_at
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Rule
from gateway.limits.store import Kind
from gateway.spending import MODEL, Models, only_of
from gateway.usage.report import Group, Only, Window

MOST_SHOWN = 60
UTC_ZONE = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Course:
    """What was spent on each day of a zone; and by the end of a period, what will have been."""

    days: Mapping[date, int]
    spent: int
    forecast: Forecast | None


@dataclass(frozen=True, slots=True)
class Line:
    """One budget."""

    rule: Rule
    name: str
    period: Period
    course: Course

    @property
    def share(self) -> float:
        return self.course.spent / self.rule.limit if self.rule.limit else 1.0

    @property
    def tone(self) -> str:
        likely = self.course.forecast.likely if self.course.forecast else self.course.spent
        if self.course.spent >= self.rule.limit:
            return "bad"
        return "warn" if likely >= self.rule.limit else ""

    @property
    def ends_on(self) -> date | None:
        """When it is used up, if things go on so."""
        known = self.course.forecast
        return reached_on(known, self.rule.limit) if known else None

    @property
    def is_own(self) -> bool:
        """Not a plan's, and not of one model: those are changed where they were made."""
        level = self.rule.subject.level
        return not self.rule.subject.model and level in (Level.ORGANISATION, Level.PROJECT)


@dataclass(frozen=True, slots=True)
class Alarm:
    row: SpendAlert
    name: str
    spent: int
    told_at: datetime | None  # this month
    likely_on: date | None


async def budgets(visit: Visit) -> dict[str, Any]:
    names = await names_of(visit)
    month = period_at(visit.now, MONTH, "UTC")
    course = await _course(visit, month, "UTC", Only(), "")
    rules = [
        rule
        for rule in visit.sources.snapshot.limits_of(visit.organisation)
        if rule.kind is Kind.MONEY and rule.period is not None
    ]
    lines = [await _line(visit, rule, names) for rule in rules[:MOST_SHOWN]]
    cap = next((each.rule.limit for each in lines if _is_the_months(each.rule)), None)
    owners = await Names.of(visit)
    return {
        "month": month,
        "course": course,
        "cap": cap,
        "last_month": await _last_month(visit, month),
        "figure": _figure(course, month, cap, visit.now),
        "lines": lines,
        "left_out": max(0, len(rules) - MOST_SHOWN),
        "alarms": await _alarms(visit, month, course, owners),
        "projects": sorted(
            ((row.id, row.name) for row in await visit.rows.projects()), key=lambda each: each[1]
        ),
        "left": month.end - visit.now,
    }


def _is_the_months(rule: Rule) -> bool:
    subject = rule.subject
    of_all = subject.level in (Level.ORGANISATION, Level.PLAN) and not subject.model
    return of_all and rule.period == MONTH


async def _line(visit: Visit, rule: Rule, names: Mapping[str, str]) -> Line:
    period = rule.period_at(visit.now)
    assert period is not None, "credits are no budgets"
    only, model = only_of(rule), rule.subject.model
    course = await _course(visit, period, rule.time_zone, only, model)
    return Line(rule, named(rule, names), period, course)


async def _course(visit: Visit, period: Period, time_zone: str, only: Only, model: str) -> Course:
    """By days of the zone, from four weeks back or the period's start to this moment."""
    zone = ZoneInfo(time_zone)
    now = visit.now.astimezone(zone)
    today, first = now.date(), period.start.astimezone(zone).date()
    begin = min(first, today - timedelta(days=LOOK_BACK))
    days = [begin + timedelta(days=number) for number in range((today - begin).days + 1)]
    edges = [midnight(day, zone) for day in (*days, today + timedelta(days=1))]
    by: tuple[Group, ...] = MODEL if model else ()
    found = await visit.report().between(edges, group_by=by, only=only)
    models = await Models.of(visit.session, model, {group for bucket in found for group in bucket})
    sums = {
        day: sum(usage.cost.total for group, usage in bucket.items() if models.mean(*group))
        for day, bucket in zip(days, found, strict=True)
    }
    spent = sum(nano for day, nano in sums.items() if day >= first)
    last = (period.end - timedelta(seconds=1)).astimezone(zone).date()
    whole = {day: nano for day, nano in sums.items() if day < today}
    return Course(sums, spent, forecast(whole, spent, now=now, last=last))


async def _last_month(visit: Visit, month: Period) -> int:
    before = period_at(month.start - timedelta(days=1), MONTH, "UTC")
    usage = await visit.report().within(Window(before.start, before.end))
    return sum(each.cost.total for each in usage.values())


def _figure(course: Course, month: Period, cap: int | None, now: datetime) -> Figure:
    """Sums so far and to come, over the days of the month."""
    first, today = month.start.date(), now.astimezone(UTC).date()
    days = [first + timedelta(days=n) for n in range((month.end - month.start).days)]
    total, so_far = 0, []
    for day in days:
        total += course.days.get(day, 0)
        so_far.append(total if day <= today else None)
    series = [Series("Spent", tuple(so_far))]
    if course.forecast is not None:
        likely = dict(course.forecast.days)
        series.append(Series("Likely", tuple(likely.get(day) for day in days)))
    if cap is not None:
        series.append(Series("Budget", tuple(cap for _ in days), is_rest=True))
    edges = tuple(midnight(day, UTC_ZONE) for day in (*days, days[-1] + timedelta(days=1)))
    span = Timespan("month", first, days[-1], edges[0], edges[-1], "day", edges)
    return Figure(title="This month", unit="usd", span=span, series=tuple(series), kind="lines",
                  summed=False)  # fmt: skip


async def _alarms(visit: Visit, month: Period, course: Course, owners: Names) -> Sequence[Alarm]:
    rows = LimitRepository(visit.session, visit.organisation)
    found = [*await rows.alerts()]
    for project in await visit.rows.projects():
        found += await rows.alerts(project.id)
    told = {each.alert_id: each.delivered_at or each.next_at
            for each in await rows.deliveries(month.id)}  # fmt: skip
    alarms = []
    for row in found:
        only = Only(project_id=(row.project_id,)) if row.project_id else None
        of_it = await _course(visit, month, "UTC", only, "") if only else course
        likely = reached_on(of_it.forecast, row.threshold_nano) if of_it.forecast else None
        name = owners.of_owner(row.project_id) if row.project_id else "all projects"
        alarms.append(Alarm(row, name, of_it.spent, told.get(row.id), likely))
    return alarms


BUDGETS = Page(
    path="/budgets",
    title="Budgets",
    section="Limits",
    icon="bell",
    template="budgets.html",
    show=budgets,
    of_one=True,
    actions=ACTIONS,
)
