"""The forecast: a steady course goes on, weekdays count, and little known is no forecast."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gateway.dashboard.forecast import forecast, reached_on

NOON = datetime(2026, 11, 15, 12, tzinfo=ZoneInfo("UTC"))
END = date(2026, 11, 30)


def days(*values: int) -> dict[date, int]:
    """Up to yesterday."""
    first = NOON.date() - timedelta(days=len(values))
    return {first + timedelta(days=number): value for number, value in enumerate(values)}


def test_what_is_the_same_every_day_goes_on_so_and_has_no_band():
    found = forecast(days(*[100] * 28), 1_450, now=NOON, last=END)
    assert found is not None
    assert (found.low, found.likely, found.high) == (3_000, 3_000, 3_000)
    assert found.days[0] == (date(2026, 11, 15), 1_500)
    assert found.days[-1] == (END, 3_000)
    assert reached_on(found, 2_000) == date(2026, 11, 20)
    assert reached_on(found, 3_001) is None


def test_weekends_to_come_are_taken_for_weekends():
    history = {day: 0 if day.weekday() > 4 else 70 for day in days(*[0] * 28)}
    found = forecast(history, 700, now=NOON.replace(hour=0), last=END)
    assert found is not None
    weekdays = sum(day.weekday() < 5 for day, _ in found.days)
    assert found.likely == 700 + 70 * weekdays


def test_days_that_vary_make_a_band_around_the_likely_and_never_below_what_is_spent():
    found = forecast(days(*[0, 200] * 14), 5_000, now=NOON, last=END)
    assert found is not None
    assert 5_000 <= found.low < found.likely < found.high


@pytest.mark.parametrize("history", [days(), days(0, 0, 0, 0, 0), days(0, 0, 0, 5, 5)])
def test_less_than_three_days_of_usage_tell_nothing(history):
    assert forecast(history, 10, now=NOON, last=END) is None


def test_quiet_days_after_the_first_usage_count():
    found = forecast(days(90, 0, 0), 90, now=NOON.replace(hour=0), last=END)
    assert found is not None
    assert found.likely == 90 + 16 * 30 or 90 < found.likely < 90 + 16 * 90
