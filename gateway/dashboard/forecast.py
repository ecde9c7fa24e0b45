"""What a period will have cost by its end, if it goes on as in the last four weeks.

Each day to come is taken for the mean of its weekday; the band holds four of five outcomes if days
vary as they did. A young history has fewer days, and with less than three there is no forecast.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import fmean, pstdev

LOOK_BACK = 28  # days
LEAST_DAYS = 3
BAND = 1.2816  # standard deviations that hold 80 % of a normal distribution


@dataclass(frozen=True, slots=True)
class Forecast:
    """Nano-dollars at the period's end."""

    low: int
    likely: int
    high: int
    days: tuple[tuple[date, int], ...]  # the likely sum at the end of each day from today on


def forecast(
    history: Mapping[date, int], spent: int, *, now: datetime, last: date
) -> Forecast | None:
    """``history``: whole days before today, all in the period's zone, as ``now`` is.

    ``spent`` so far in the period; ``last`` is its last day. None: too little is known.
    """
    today = now.date()
    known = _since_the_first(history, today)
    if len(known) < LEAST_DAYS:
        return None
    mean = fmean(known.values())
    by_weekday: dict[int, list[int]] = {}
    for day, nano in known.items():
        by_weekday.setdefault(day.weekday(), []).append(nano)
    means = {weekday: fmean(values) for weekday, values in by_weekday.items()}
    sigma = pstdev([nano - means[day.weekday()] for day, nano in known.items()] or [0])
    if all(len(values) == 1 for values in by_weekday.values()):  # each is its own mean
        sigma = pstdev(known.values())
    left = 1 - (now - now.replace(hour=0, minute=0, second=0, microsecond=0)) / timedelta(days=1)
    total, days, variance = float(spent), [], 0.0
    for ahead in range((last - today).days + 1):
        share = left if ahead == 0 else 1.0
        day = today + timedelta(days=ahead)
        total += means.get(day.weekday(), mean) * share
        variance += sigma**2 * share
        days.append((day, round(total)))
    band = BAND * math.sqrt(variance)
    return Forecast(max(spent, round(total - band)), round(total), round(total + band), tuple(days))


def reached_on(found: Forecast, nano: int) -> date | None:
    """The day on which the likely sum comes to so much; None: not in this period."""
    return next((day for day, total in found.days if total >= nano), None)


def _since_the_first(history: Mapping[date, int], today: date) -> dict[date, int]:
    """A day without usage counts once there was any before it."""
    days: Sequence[date] = [today - timedelta(days=back) for back in range(LOOK_BACK, 0, -1)]
    first = next((day for day in days if history.get(day)), None)
    return {day: history.get(day, 0) for day in days if first is not None and day >= first}
