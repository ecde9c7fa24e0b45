"""What the metrics page says of the books: differences, and how much of each budget is used."""

from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from gateway.books_watch import BooksWatch
from gateway.limits.limiter import memory_limiter
from gateway.limits.models import Level
from gateway.limits.rules import Allowance, RuleBook, Subject
from gateway.limits.store import Purse
from gateway.metrics import Metrics
from gateway.usage.rollups import Rollups
from tests.gateway.test_books import NOON, Books

PREFIX = "loratorio_gateway_"


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """By subject, "" without one."""
    return {
        sample.labels.get("subject", ""): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == PREFIX + name
    }


class Counters:
    """Live counters as a limiter tells them."""

    def __init__(self, *purses: Purse) -> None:
        self._purses = purses

    async def purses(self) -> list[Purse]:
        return list(self._purses)


@pytest.fixture
def books(database, tmp_path) -> Books:
    return Books(database, tmp_path)


async def test_books_that_differ_are_counted_and_those_that_agree_are_not(books):
    metrics = Metrics()
    now = NOON + timedelta(hours=1)
    watch = BooksWatch(books.database, memory_limiter(), RuleBook, metrics, now=lambda: now)
    await books.price("1")
    await books.serve("req_1")
    await Rollups(books.database).roll_up()
    await watch.look_at_books()
    assert shown(metrics, "ledger_differences") == {"": 0}
    assert shown(metrics, "ledger_checked_timestamp_seconds") == {"": now.timestamp()}
    async with books.database.unit_of_work() as session:
        await session.execute(text("UPDATE usage_rollup SET output_nano = output_nano + 1"))
    await watch.look_at_books()
    assert shown(metrics, "ledger_differences") == {"": 1}


async def test_budgets_of_running_periods_show_what_is_spent_and_reserved():
    metrics = Metrics()
    month = Allowance(period="month", nano=1000)
    book = RuleBook(allowances={Subject(Level.PROJECT, "prj_1"): (month,)})
    key = "lim:{org_1}:project:prj_1::money-month-UTC"
    limiter = Counters(
        Purse(f"{key}:2026-11", 700, 50, ()),
        Purse(f"{key}:2026-10", 999, 0, ()),  # is over
        Purse("lim:{org_1}:project:prj_2::money-month-UTC:2026-11", 5, 0, ()),  # has no budget
        Purse("lim:{org_1}:project:prj_1::money-month-UTC:2026-12", None, 0, ()),
    )
    watch = BooksWatch(None, limiter, lambda: book, metrics, now=lambda: NOON)
    await watch.look_at_budgets()
    assert shown(metrics, "budget_spent_nano_usd") == {"prj_1": 750}
    assert shown(metrics, "budget_nano_usd") == {"prj_1": 1000}
