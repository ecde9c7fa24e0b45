"""Reports equal the ledger to the token, whatever is rolled up by then and however it is cut."""

import itertools
import random
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy

from gateway.dashboard.explore import METRICS
from gateway.errors import InvalidRequest
from gateway.usage.event import Event, Kind, month_of, slot_of
from gateway.usage.log import Position
from gateway.usage.report import (
    DAY,
    EVER,
    HOUR,
    MINUTE,
    SPEND,
    Largest,
    Only,
    Usage,
    UsageReport,
    Window,
)
from gateway.usage.repository import LedgerRepository
from gateway.usage.rollups import Rollups

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
QUARTER = timedelta(minutes=15)
_numbers = itertools.count()


def event(at: datetime = NOON, **changes) -> Event:
    facts = {
        "id": f"req_{next(_numbers):06d}",
        "day": at.date(),
        "slot": slot_of(int(at.timestamp()) * 10**9),
        "period": month_of(at.date()),
        "organisation_id": "org_1",
        "project_id": "prj_1",
        "key_id": "key_1",
        "model": "smol",
        "base_model": "smol",
        "adapter_id": None,
        "digest": None,
        "endpoint": "chat.completions",
        "outcome": "completed",
        "finish_reason": "stop",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "price_id": "prc_1",
        "cost_nano": 60,
        "input_nano": 10,
        "cached_nano": 20,
        "output_nano": 30,
        "started_at": at,
        "finished_at": at + timedelta(seconds=3),
    }
    return Event(**facts | changes)


async def write(database, *events: Event, log: str = "log_1") -> None:
    """One transaction of a log."""
    async with database.unit_of_work() as session:
        rows = LedgerRepository(session)
        for day in {each.day for each in events}:
            await rows.ensure_partition(day)
        await rows.add_events(events, log, await rows.move(log, Position(1, 0)))


async def total(database, window: Window = EVER, project: str | None = None, **only) -> Usage:
    async with database.reading() as session:
        return await UsageReport(session, "org_1", project).total(window, only=Only(**only))


async def buckets(database, window: Window, width: timedelta, *group_by):
    async with database.reading() as session:
        return await UsageReport(session, "org_1").buckets(window, width, group_by=group_by)


async def test_an_event_is_seen_before_and_after_it_is_rolled_up_and_once(database):
    await write(database, event(), event(NOON + QUARTER, adapter_id="adp_1"))
    before = await total(database)
    assert (before.requests, before.prompt_tokens, before.cost.total) == (2, 20, 120)
    assert await Rollups(database).roll_up() == 1
    assert await total(database) == before
    assert await Rollups(database).roll_up() == 0
    await write(database, event(NOON))  # late: its quarter is rolled up already
    assert (await total(database)).requests == 3
    await Rollups(database).roll_up()
    assert (await total(database)).requests == 3


async def test_an_event_that_comes_twice_counts_once(database):
    one = event()
    await write(database, one)
    await write(database, one, event())
    await write(database, one, log="log_2")
    await Rollups(database).roll_up()
    assert (await total(database)).requests == 2


async def test_two_that_add_up_at_once_add_once(database):
    import asyncio

    await asyncio.gather(
        *(write(database, *(event() for _ in range(9)), log=f"log_{n}") for n in range(4))
    )
    await asyncio.gather(*(Rollups(database).roll_up() for _ in range(4)))
    await Rollups(database).roll_up()
    assert (await total(database)).requests == 36


async def test_any_cut_of_time_adds_up_to_the_ledger_at_any_stage_of_rolling(database):
    rng = random.Random(7)
    begun = NOON - timedelta(hours=30)
    events = [
        event(
            begun + timedelta(seconds=rng.randrange(60 * 3600)),
            project_id=rng.choice(["prj_1", "prj_2"]),
            prompt_tokens=rng.randrange(4, 99),
        )
        for _ in range(300)
    ]
    for first in range(0, 300, 60):
        await write(database, *events[first : first + 60], log=f"log_{first % 120}")
        if first in (60, 180):
            await Rollups(database).roll_up()
    for _ in range(12):
        start = begun + timedelta(seconds=rng.randrange(30 * 3600))
        end = start + timedelta(seconds=rng.randrange(1, 20 * 3600))
        wanted = [e for e in events if start <= e.started_at < end]
        for width in (QUARTER, HOUR, DAY, MINUTE):
            found = await buckets(database, Window(start, end), width, "project_id")
            assert all(bucket.end - bucket.start == width for bucket in found)
            lines = [(b.start, line) for b in found for line in b.lines]
            for project in ("prj_1", "prj_2"):
                assert sum(
                    line.usage.prompt_tokens for _, line in lines if line.group == (project,)
                ) == sum(e.prompt_tokens for e in wanted if e.project_id == project)
            for bucket_start, line in lines:
                assert line.usage.requests == sum(
                    bucket_start <= e.started_at < bucket_start + width
                    and e.project_id == line.group[0]
                    for e in wanted
                )


async def test_buckets_are_half_open_and_none_is_left_out(database):
    await write(database, event(NOON), event(NOON + HOUR), event(NOON + 3 * HOUR))
    found = await buckets(database, Window(NOON, NOON + 3 * HOUR), HOUR)
    assert [b.start for b in found] == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert [sum(line.usage.requests for line in b.lines) for b in found] == [1, 1, 0]


async def test_a_day_is_a_day_in_utc_and_a_midnight_belongs_to_the_next(database):
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    await write(database, event(midnight - second), event(midnight), event(midnight + second))
    await Rollups(database).roll_up()
    found = await buckets(database, Window(midnight - DAY, midnight + DAY), DAY, "period")
    told = [[(line.group, line.usage.requests) for line in b.lines] for b in found]
    assert told == [[(("2026-11-01",), 1)], [(("2026-12-01",), 2)]]


@pytest.mark.parametrize("rolled", [False, True], ids=["from_events", "from_rollups"])
async def test_another_organisation_and_another_project_are_not_seen(database, rolled):
    await write(
        database,
        event(),
        event(project_id="prj_2"),
        event(organisation_id="org_2", project_id="prj_9"),
    )
    if rolled:
        await Rollups(database).roll_up()
    assert (await total(database)).requests == 2
    assert (await total(database, project="prj_1")).requests == 1
    assert (await total(database, project="prj_9")).requests == 0


@pytest.mark.parametrize("rolled", [False, True], ids=["from_events", "from_rollups"])
async def test_filters_and_groups_name_the_base_by_nothing(database, rolled):
    await write(
        database,
        event(adapter_id="adp_1", key_id="key_2"),
        event(user_id="customer"),
        event(price_id=None, cost_nano=None, input_nano=0, cached_nano=0, output_nano=0),
    )
    if rolled:
        await Rollups(database).roll_up()
    assert (await total(database, adapter_id=("adp_1",))).requests == 1
    assert (await total(database, adapter_id=("",))).requests == 2
    assert (await total(database, key_id=("key_1", "key_2"))).requests == 3
    async with database.reading() as session:
        lines = await UsageReport(session, "org_1").lines(EVER, ("adapter_id", "user_id"))
    assert [line.group for line in lines] == [("", ""), ("", "customer"), ("adp_1", "")]
    assert (await total(database)).unpriced == 1


async def test_an_adjustment_changes_cost_and_counts_as_no_request(database):
    unpriced = event(price_id=None, cost_nano=None, input_nano=0, cached_nano=0, output_nano=0)
    nothing = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
    priced = event(kind=Kind.ADJUSTMENT, corrects=unpriced.id, **nothing)
    await write(database, unpriced)
    assert (await total(database)).unpriced == 1
    await write(database, priced)
    for _ in range(2):
        usage = await total(database)
        assert (usage.requests, usage.unpriced, usage.cost.total) == (1, 0, 60)
        assert usage.prompt_tokens == 10
        await Rollups(database).roll_up()


@pytest.mark.parametrize("width", [timedelta(seconds=30), timedelta(minutes=20), 2 * DAY])
async def test_widths_that_cut_no_day_evenly_are_refused(database, width):
    with pytest.raises(InvalidRequest, match="bucket_width"):
        await buckets(database, Window(NOON, NOON + DAY), width)


async def test_a_window_that_ends_before_it_begins_is_refused(database):
    with pytest.raises(InvalidRequest, match="start_time"):
        await buckets(database, Window(NOON, NOON), DAY)


@pytest.mark.parametrize("backend", ["postgres"])
async def test_partitions_are_made_ahead_and_each_day_has_its_own(database):
    from sqlalchemy import text

    await Rollups(database, clock=lambda: datetime(2031, 1, 1, tzinfo=UTC)).prepare_days()
    await write(database, event(datetime(2031, 1, 2, tzinfo=UTC)))
    async with database.reading() as session:
        count = text("SELECT count(*) FROM usage_event_20310102")
        assert (await session.execute(count)).scalar_one() == 1
        named = text("SELECT to_regclass('usage_event_20310115') IS NOT NULL")
        assert (await session.execute(named)).scalar_one()
    assert date(2031, 1, 15) - date(2031, 1, 1) == timedelta(days=14)


async def test_sums_between_edges_are_those_of_the_slots_between_them(database):
    """Days of a zone that is off by a half hour and changes its clocks."""
    begin = datetime(2026, 11, 28, 18, 30, tzinfo=UTC)
    edges = [begin, begin + timedelta(hours=25), begin + timedelta(hours=49)]
    at = [edges[0], edges[1] - timedelta(seconds=1), edges[1], edges[2] - timedelta(seconds=1)]
    outside = [edges[0] - timedelta(seconds=1), edges[2]]
    await write(database, *(event(each, model=f"m{i}") for i, each in enumerate(at)))
    await Rollups(database).roll_up()
    await write(database, *(event(each) for each in (*at, *outside)))  # not rolled up yet
    async with database.reading() as session:
        report = UsageReport(session, "org_1")
        first, second = await report.between(edges)
        assert (first[()].requests, second[()].requests) == (4, 4)
        first, second = await report.between(edges, group_by=("model",))
        assert {name: each.requests for (name,), each in first.items()} == {
            "m0": 1, "m1": 1, "smol": 2,
        }  # fmt: skip
        assert sorted(second) == [("m2",), ("m3",), ("smol",)]


async def test_an_operators_report_is_of_all_organisations(database):
    await write(database, event(), event(organisation_id="org_2", project_id="prj_2"))
    async with database.reading() as session:
        lines = await UsageReport(session, None).lines(EVER, ("organisation_id",))
        assert [(line.group[0], line.usage.requests) for line in lines] == [
            ("org_1", 1), ("org_2", 1),
        ]  # fmt: skip


async def test_a_writer_sees_what_is_not_rolled_up_as_a_reader_does(database):
    await write(database, event(), event(organisation_id="org_2", project_id="prj_2"))
    await Rollups(database).roll_up()
    await write(database, event(), log="log_2")
    await write(database, event(), event(NOON - 3 * DAY), log="log_3")
    found = []
    for session_of in (database.reading, database.unit_of_work):
        async with session_of() as session:
            for owner in ("org_1", None):
                found.append(await UsageReport(session, owner).total(EVER))
    assert [usage.requests for usage in found] == [4, 5, 4, 5]
    assert found[:2] == found[2:]


async def test_nothing_is_the_sum_of_no_time(database):
    await write(database, event())
    await Rollups(database).roll_up()
    async with database.reading() as session:
        report = UsageReport(session, "org_1")
        assert await report.within(Window(NOON, NOON)) == {}


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_what_is_not_rolled_up_is_found_by_its_log_among_any_number(database):
    await write(database, event())
    asked: list[tuple[str, object]] = []
    engine = database.engine.sync_engine

    def listen(connection, cursor, statement, parameters, context, many):
        asked.append((statement, parameters))

    async with database.reading() as session:
        sqlalchemy.event.listen(engine, "before_cursor_execute", listen)
        await UsageReport(session, "org_1", "prj_1").total(Window(NOON - DAY, NOON + DAY))
        sqlalchemy.event.remove(engine, "before_cursor_execute", listen)
        connection = await session.connection()
        statement, parameters = asked[-1]
        plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        steps = [step for *_, step in plan if "usage_event" in step]
    assert len(steps) == 1
    assert "ix_usage_event_log_batch" in steps[0]


@pytest.mark.parametrize("metric", sorted(METRICS))
async def test_the_largest_are_those_that_would_come_first_of_all(database, metric):
    """Some rolled up, some not, some as large as others; names in the order of their codes."""
    draw = random.Random(3)
    names = ["b", "B", "a", "Ä", "é", "zz", "_", "9", "a-b", "ab"]
    for number in range(40):
        tokens = draw.choice((5, 10, 20))
        changes = {"model": draw.choice(names), "prompt_tokens": tokens}
        changes |= {"input_nano": tokens, "cost_nano": tokens + 50}
        await write(database, event(NOON + number % 7 * QUARTER, **changes))
        if number == 25:
            await Rollups(database).roll_up()
    of, sums, window = METRICS[metric].of, METRICS[metric].sums, Window(NOON, NOON + DAY)
    async with database.reading() as session:
        report = UsageReport(session, "org_1")
        every = await report.within(window, group_by=("model",))
        largest = await report.largest(window, "model", by=(sums,), most=4)
        nothing = await report.largest(Window(NOON - DAY, NOON), "model", by=(sums,), most=4)
    order = sorted(every.items(), key=lambda line: (-of(line[1]), line[0]))
    assert largest.lines == [(name, usage) for (name,), usage in order[:4]]
    assert largest.groups == len(every)
    assert largest.whole == sum(every.values(), Usage())
    assert nothing == Largest()


async def test_the_next_sum_decides_between_the_largest_and_then_their_names(database):
    await write(database, *(event(model=name) for name in ("c", "a", "b")))
    free = dict.fromkeys(("cost_nano", "input_nano", "cached_nano", "output_nano"), 0)
    await write(database, event(model="b", **free))
    async with database.reading() as session:
        largest = await UsageReport(session, "org_1").largest(
            Window(NOON, NOON + DAY), "model", by=(SPEND, ("requests",)), most=5
        )
    assert [name for name, _ in largest.lines] == ["b", "a", "c"]
