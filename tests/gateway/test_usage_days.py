"""The days' sums are the quarters' sums, and what reads them says the same as what does not."""

import importlib
import random
from datetime import UTC, datetime, timedelta

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, text
from sqlalchemy.event import listen as listen_for
from sqlalchemy.event import remove as stop_listening

from gateway.usage.pace import FIRST, Place
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.reconcile import Reconciliation
from gateway.usage.report import DAY, Only, UsageReport, Window
from gateway.usage.rollups import Rollups
from tests.gateway.test_report import NOON, event, write

FIRST_DAY = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
async def written(database):
    """Ten days of events in several batches; the last is not rolled up."""
    dice = random.Random(11)
    events = [
        event(
            FIRST_DAY + timedelta(seconds=dice.randrange(10 * 86400)),
            organisation_id=f"org_{owner}", project_id=f"prj_{owner}",
            user_id=dice.choice(["", "ada", "bob"]), key_id=f"key_{dice.randrange(3)}",
            model=dice.choice(["smol", "sql"]), adapter_id=dice.choice([None, "adp_1"]),
            prompt_tokens=dice.randrange(4, 900),
        )
        for owner in (1, 2)
        for _ in range(240)
    ]  # fmt: skip
    for first in range(0, len(events), 120):
        if first == 360:
            await Rollups(database).roll_up()
        await write(database, *events[first : first + 120])
    return events


async def test_whole_days_are_as_their_events_by_anything_they_know(database, written):
    edges = [FIRST_DAY + timedelta(days=n) for n in range(11)]
    async with database.reading() as session:
        for owner in (None, "org_1"):
            report = UsageReport(session, owner)
            mine = [e for e in written if owner in (None, e.organisation_id)]
            for column in ("model", "project_id", "key_id", "adapter_id", "user_id"):
                found = await report.between(edges, group_by=(column,))
                for start, sums in zip(edges, found, strict=False):
                    expected: dict[str, int] = {}
                    for each in mine:
                        if start <= each.started_at < start + DAY:
                            name = getattr(each, column) or ""
                            expected[name] = expected.get(name, 0) + each.prompt_tokens
                    assert {g[0]: u.prompt_tokens for g, u in sums.items()} == expected


async def test_ragged_windows_and_filters_are_as_their_events(database, written):
    dice = random.Random(5)
    async with database.reading() as session:
        report = UsageReport(session, None)
        for _ in range(8):
            start = FIRST_DAY + timedelta(seconds=dice.randrange(5 * 86400))
            window = Window(start, start + timedelta(seconds=dice.randrange(1, 5 * 86400)))
            within = [e for e in written if window.start <= e.started_at < window.end]
            for only in (Only(), Only(model=("sql",)), Only(user_id=("ada",)),
                         Only(organisation_id=("org_2",), adapter_id=("",))):  # fmt: skip
                kept = [
                    e for e in within
                    if all((getattr(e, name) or "") in getattr(only, name)
                           for name in only.columns)
                ]  # fmt: skip
                total = await report.total(window, only=only)
                assert total.requests == len(kept)
                assert total.prompt_tokens == sum(e.prompt_tokens for e in kept)


async def test_days_of_a_zone_are_not_days_of_utc(database, written):
    edges = [FIRST_DAY - timedelta(hours=5, minutes=45) + timedelta(days=n) for n in range(11)]
    async with database.reading() as session:
        found = await UsageReport(session, None).between(edges)
    for start, sums in zip(edges, found, strict=False):
        requests = sum(usage.requests for usage in sums.values())
        assert requests == sum(start <= e.started_at < start + DAY for e in written)


async def test_reconciling_finds_a_day_that_is_not_the_sum_of_its_quarters(database, written):
    assert (await Reconciliation(database).run()).differences == []
    async with database.unit_of_work() as session:
        wrong = "UPDATE usage_day SET prompt_tokens = prompt_tokens + 1 WHERE grain <> 'all'"
        first = "(SELECT min(day) FROM usage_day d WHERE d.grain = usage_day.grain)"
        await session.execute(text(f"{wrong} AND day = {first}"))
    findings = await Reconciliation(database).run()
    assert {each.check for each in findings.differences} == {
        "days by owner",
        "days by kind",
        "days by week",
    }
    assert findings.compared["days by project"] == 20


async def test_paces_of_all_tenants_are_the_sums_of_theirs(database):
    dice = random.Random(3)
    places = [
        Place(NOON.replace(hour=hour, day=day), f"prj_{owner}", "smol", FIRST,
              dice.randrange(90, 94), f"org_{owner}")
        for owner in (1, 2) for day in (27, 28, 29) for hour in (0, 9, 23)
    ]  # fmt: skip
    async with database.unit_of_work() as session:
        for place in places:
            await PaceRepository(session).add({place: 1})
    async with database.reading() as session:
        for start, end in ((26, 30), (28, 29)):
            for hour in (0, 10):
                window = Window(NOON.replace(day=start, hour=hour), NOON.replace(day=end))
                found = (await PaceRepository(session).counts(window)).get(FIRST, {})
                wanted = [p.step for p in places if window.start <= p.slot < window.end]
                assert found == {step: wanted.count(step) for step in set(wanted)}


async def test_weeks_are_as_their_events_wherever_a_window_begins_and_ends(database):
    dice = random.Random(17)
    events = [
        event(
            FIRST_DAY - timedelta(seconds=dice.randrange(40 * 86400)),
            organisation_id=f"org_{number % 3}", project_id=f"prj_{number % 5}-{number % 3}",
            prompt_tokens=dice.randrange(4, 900),
        )
        for number in range(360)
    ]  # fmt: skip
    await write(database, *events[:200])
    await Rollups(database).roll_up()
    await write(database, *events[200:300], log="log_2")
    await Rollups(database).roll_up()
    await write(database, *events[300:])
    asked: list[str] = []

    def listen(connection, cursor, statement, parameters, context, many):
        asked.append(str(parameters))

    engine = database.engine.sync_engine
    listen_for(engine, "before_cursor_execute", listen)
    async with database.reading() as session:
        for number in range(9):
            start = FIRST_DAY - timedelta(minutes=15 * dice.randrange(40 * 96))
            if number % 3 == 0:
                start = start.replace(hour=0, minute=0)
            window = Window(start, start + timedelta(days=dice.randrange(1, 40)))
            for owner, column in ((None, "organisation_id"), ("org_1", "project_id")):
                expected: dict[str, int] = {}
                for each in events:
                    mine = owner in (None, each.organisation_id)
                    if mine and window.start <= each.started_at < window.end:
                        name = getattr(each, column)
                        expected[name] = expected.get(name, 0) + each.prompt_tokens
                found = await UsageReport(session, owner).within(window, group_by=(column,))
                assert {g[0]: u.prompt_tokens for g, u in found.items()} == expected
    stop_listening(engine, "before_cursor_execute", listen)
    assert any("week" in each for each in asked)
    assert (await Reconciliation(database).run()).differences == []


async def test_migrating_adds_weeks_up_as_settling_does(database, written):
    sums = text("SELECT day, project_id, prompt_tokens, requests FROM usage_day"
                " WHERE grain = 'week' ORDER BY day, project_id")  # fmt: skip
    async with database.reading() as session:
        settled = [tuple(row) for row in await session.execute(sums)]
    async with database.transaction() as connection:
        await connection.exec_driver_sql("DELETE FROM usage_day WHERE grain = 'week'")
        await connection.run_sync(migrate_weeks)
    async with database.reading() as session:
        assert [tuple(row) for row in await session.execute(sums)] == settled
    assert len(settled) == 4


def migrate_weeks(connection: Connection) -> None:
    name = "migrations.versions.2026_11_30_0710_usage_weeks"
    with Operations.context(MigrationContext.configure(connection)):
        importlib.import_module(name).upgrade()
