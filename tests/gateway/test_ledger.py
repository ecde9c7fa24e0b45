"""Usage reaches the database exactly once, whatever dies on the way."""

import asyncio
import os
import signal
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from engine.protocol import Counts
from gateway.config import ConfigError
from gateway.db import DatabaseUnavailable
from gateway.errors import UsageLogUnavailable
from gateway.ids import new_id
from gateway.usage.ledger import Ledger
from gateway.usage.log import Position, UsageLog, frame
from gateway.usage.models import Price, UsageEvent
from gateway.usage.record import Finished, Outcome, Started
from gateway.usage.recorder import Recorder
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9


def started(request: str, **changes) -> Started:
    facts = {
        "request": request,
        "organisation": "org_1",
        "project": "prj_1",
        "key": "key_1",
        "model": "support",
        "base_model": "smol",
        "adapter_id": None,
        "digest": None,
        "endpoint": "chat.completions",
        "prompt_tokens": 10,
        "at_ns": NOON_NS,
    }
    return Started(**facts | changes)


def finished(request: str, **changes) -> Finished:
    facts = {
        "request": request,
        "outcome": Outcome.COMPLETED,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "finish_reason": "stop",
        "engine": "e1",
        "boot": "b1",
        "at_ns": NOON_NS + 10**9,
    }
    return Finished(**facts | changes)


async def record(recorder: Recorder, *requests: str) -> None:
    for request in requests:
        await recorder.started(started(request))
        await recorder.finished(finished(request))


async def stored(database, project: str = "prj_1"):
    async with database.reading() as session:
        return {
            row.id: row
            for row in await session.scalars(
                select(UsageEvent).where(UsageEvent.project_id == project)
            )
        }


@pytest.fixture
def usage_log(tmp_path) -> UsageLog:
    return UsageLog(tmp_path / "usage")


async def test_a_request_becomes_one_event_with_its_exact_cost(database, usage_log):
    async with database.unit_of_work() as session:
        LedgerRepository(session).add_price(
            Price(
                id="prc_1",
                base_model="smol",
                input_pico=1_000,
                cached_input_pico=500,
                output_pico=2_500,
                effective_from=NOON - timedelta(days=1),
                created_at=NOON,
            )
        )
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    await Ledger(usage_log, database, live_from=recorder.first_segment).settle()
    await recorder.close()
    event = (await stored(database))["req_1"]
    # 6 x 1000 + 4 x 500 + 7 x 2500 = 25,500 pico, rounded half up
    assert (event.cost_nano, event.price_id) == (26, "prc_1")
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (10, 4, 7)
    assert (event.started_at, event.day, event.outcome) == (NOON, NOON.date(), "completed")
    assert not event.recovered


async def test_settling_again_and_from_the_beginning_changes_nothing(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1", "req_2")
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    assert await ledger.settle() == 4
    assert await ledger.settle() == 0
    async with database.unit_of_work() as session:
        await LedgerRepository(session).move(usage_log.id, Position(0, 0))
    await Ledger(usage_log, database, live_from=recorder.first_segment).settle()
    assert set(await stored(database)) == {"req_1", "req_2"}
    await recorder.close()


async def test_a_clock_that_steps_back_changes_no_count(database, usage_log):
    hour = 3600 * 10**9
    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_1"))
    await recorder.started(started("req_2", at_ns=NOON_NS - 24 * hour))  # before req_1, it says
    await recorder.finished(finished("req_2", at_ns=NOON_NS - 25 * hour))
    await recorder.finished(finished("req_1", at_ns=NOON_NS - hour))
    await Ledger(usage_log, database, live_from=recorder.first_segment).settle()
    await recorder.close()
    events = await stored(database)
    assert {name: event.day.day for name, event in events.items()} == {"req_1": 30, "req_2": 29}
    assert all(event.completion_tokens == 7 for event in events.values())


async def test_a_beginning_is_in_the_log_before_anything_is_done_for_it(usage_log):
    """Read by another hand, without a sync or a close: as after a kill -9."""
    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_1"))
    (entry,) = UsageLog(usage_log.folder).read(Position(0, 0), 9)
    assert entry.record.request == "req_1"
    await recorder.close()


async def test_usage_without_a_price_is_kept_and_marked_unpriced(database, usage_log, caplog):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    await ledger.settle()
    await recorder.close()
    event = (await stored(database))["req_1"]
    assert (event.cost_nano, event.price_id) == (None, None)
    assert ledger.unpriced == 1
    assert "no price for smol" in caplog.text
    async with database.reading() as session:
        total = await UsageReport(session, "org_1", "prj_1").total(EVER)
    assert (total.requests, total.unpriced, total.cost.total) == (1, 1, 0)


async def test_an_open_request_holds_the_position_back_but_not_the_others(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_long"))
    await record(recorder, "req_short")
    live = recorder.first_segment
    await Ledger(usage_log, database, live_from=live).settle()
    assert set(await stored(database)) == {"req_short"}

    await recorder.finished(finished("req_long"))  # seen by a ledger that starts afresh
    await Ledger(usage_log, database, live_from=live).settle()
    assert set(await stored(database)) == {"req_short", "req_long"}
    await recorder.close()


async def test_requests_of_a_dead_gateway_are_closed_by_the_engines_count(database, usage_log):
    dead = await Recorder.open(usage_log)
    for request in ("req_known", "req_unknown", "req_silent"):
        await dead.started(started(request))
    await record(dead, "req_done")
    await dead.close()

    async def lookup(request: str) -> Counts | None:
        if request == "req_silent":
            raise TimeoutError
        counts = Counts(request, "boot_9", prompt_tokens=10, completion_tokens=5, finished=True)
        return counts if request == "req_known" else Counts(request)

    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_running"))
    await record(recorder, "req_new")
    now = 0.0
    ledger = Ledger(
        usage_log,
        database,
        live_from=recorder.first_segment,
        lookup=lookup,
        patience_s=60,
        clock=lambda: now,
    )
    await ledger.settle()
    assert set(await stored(database)) == {"req_known", "req_done", "req_new"}
    now = 61.0  # the engines had the time to come back
    await ledger.settle()
    events = await stored(database)
    await recorder.close()
    assert set(events) == {"req_known", "req_unknown", "req_silent", "req_done", "req_new"}
    assert (events["req_known"].completion_tokens, events["req_known"].boot) == (5, "boot_9")
    for request in ("req_unknown", "req_silent"):
        assert (events[request].prompt_tokens, events[request].completion_tokens) == (10, 0)
    assert {r for r, event in events.items() if event.recovered} == {
        "req_known",
        "req_unknown",
        "req_silent",
    }
    assert events["req_known"].outcome == "failed"


async def test_settled_segments_are_dropped_and_later_ones_go_on(database, usage_log):
    recorder = await Recorder.open(usage_log, segment_bytes=600)
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    requests = [f"req_{number:03d}" for number in range(40)]
    for request in requests:
        await record(recorder, request)
        if request.endswith("5"):
            await ledger.settle()
    assert len(usage_log.segments()) > 1
    await ledger.settle()
    assert len(usage_log.segments()) <= 2  # what was written last, and perhaps what comes next
    assert sorted(await stored(database)) == requests
    await recorder.close()


@pytest.mark.parametrize("torn", [1, 7, 8, 9, 60], ids=lambda count: f"{count}_bytes")
async def test_a_torn_tail_costs_only_the_record_it_was(database, usage_log, torn):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    await recorder.close()
    with usage_log.path(recorder.first_segment).open("ab") as stream:
        stream.write(frame(finished("req_torn"))[:torn])
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_2")
    await recorder.close()
    await Ledger(usage_log, database).settle()
    assert set(await stored(database)) == {"req_1", "req_2"}


async def test_a_flipped_bit_is_not_billed(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    await recorder.close()
    path = usage_log.path(recorder.first_segment)
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    await Ledger(usage_log, database).settle()
    (event,) = (await stored(database)).values()
    assert (event.outcome, event.completion_tokens) == ("failed", 0)


async def test_an_end_without_a_beginning_is_reported(database, usage_log, caplog):
    recorder = await Recorder.open(usage_log)
    await recorder.finished(finished("req_lost"))
    await recorder.close()
    await Ledger(usage_log, database).settle()
    assert "usage of req_lost has an end and no beginning" in caplog.text


async def test_tokens_that_make_no_sense_do_not_stop_the_ledger(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_1", model="m" * 999))
    await recorder.finished(
        finished("req_1", cached_tokens=99, completion_tokens=-1, engine="e" * 999)
    )
    await recorder.close()
    await Ledger(usage_log, database).settle()
    event = (await stored(database))["req_1"]
    assert (event.cached_tokens, event.completion_tokens) == (10, 0)


async def test_what_finished_returned_for_survives_a_kill(database, usage_log):
    """A process records, reports each durable request on a pipe, and is killed in the midst."""
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from gateway.usage.log import UsageLog
        from gateway.usage.recorder import Recorder
        from tests.gateway.test_ledger import finished, started

        async def one(recorder, worker):
            number = 0
            while True:
                request = f"req_{worker}_{number}"
                await recorder.started(started(request))
                await recorder.finished(finished(request))
                print(request, flush=True)
                number += 1

        async def main():
            recorder = await Recorder.open(UsageLog(Path(sys.argv[1])))
            await asyncio.gather(*(one(recorder, worker) for worker in range(8)))

        asyncio.run(main())
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        str(usage_log.folder),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": "."},
    )
    assert process.stdout is not None
    lines = [await asyncio.wait_for(process.stdout.readline(), 20) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    rest = (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    promised = {line.decode().strip() for line in [*lines, *rest] if line.endswith(b"\n")}
    await Ledger(usage_log, database).settle()
    events = await stored(database)
    assert promised <= {request for request, event in events.items() if not event.recovered}
    assert len(events) <= len(promised) + 8 + 8  # at most one more each, and one just begun


async def test_one_log_has_one_writer(usage_log):
    recorder = await Recorder.open(usage_log)
    with pytest.raises(ConfigError, match="another gateway"):
        await Recorder.open(usage_log)
    await recorder.close()
    await (await Recorder.open(usage_log)).close()


async def test_a_disk_that_refuses_stops_admission_and_loses_nothing(
    database, usage_log, monkeypatch
):
    recorder = await Recorder.open(usage_log)
    real = os.fdatasync

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", refuse)
    await recorder.started(started("req_1"))
    with pytest.raises(UsageLogUnavailable, match="No space left"):
        await recorder.finished(finished("req_1"))
    with pytest.raises(UsageLogUnavailable):
        await recorder.started(started("req_2"))
    monkeypatch.setattr(os, "fdatasync", real)
    for _ in range(100):
        if recorder.healthy:
            break
        await asyncio.sleep(0.05)
    await record(recorder, "req_3")
    await recorder.close()
    await Ledger(usage_log, database).settle()
    events = await stored(database)
    assert events["req_1"].outcome == "completed"
    assert events["req_3"].outcome == "completed"
    assert events["req_2"].completion_tokens == 0


async def test_a_database_that_is_away_loses_nothing(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    working, database.writer = database.writer, _Away()
    with pytest.raises(DatabaseUnavailable):
        await ledger.settle()
    database.writer = working
    await record(recorder, "req_2")
    assert await ledger.settle() == 4
    assert set(await stored(database)) == {"req_1", "req_2"}
    await recorder.close()


class _Away:
    """An engine whose server cannot be reached."""

    sync_engine = property(lambda self: (_ for _ in ()).throw(ConnectionRefusedError("refused")))


async def test_a_run_that_ends_while_the_database_is_away_has_not_failed(
    database, usage_log, caplog
):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    working, database.writer = database.writer, _Away()
    await ledger.finish(patience_s=0.0)
    assert "usage stays in the log until the next start" in caplog.text
    await recorder.close()
    database.writer = working
    assert await Ledger(usage_log, database).settle() == 2
    assert set(await stored(database)) == {"req_1"}


async def test_a_run_that_ends_waits_for_whoever_holds_the_database(
    database, usage_log, monkeypatch
):
    """As SQLite says "database is locked" when another writes for longer than one waits."""
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    ledger = Ledger(usage_log, database, live_from=recorder.first_segment)
    working, database.writer = database.writer, _Away()
    tries, settle = 0, ledger.settle

    async def third_time_it_is_free() -> int:
        nonlocal tries
        tries += 1
        if tries == 3:
            database.writer = working
        return await settle()

    monkeypatch.setattr(ledger, "settle", third_time_it_is_free)
    monkeypatch.setattr("gateway.usage.ledger.TRY_AGAIN_S", 0.0)
    await ledger.finish(patience_s=60.0)
    assert tries == 3
    assert set(await stored(database)) == {"req_1"}
    await recorder.close()


async def test_many_events_go_in_batches(database, usage_log):
    recorder = await Recorder.open(usage_log)
    requests = [new_id("req") for _ in range(1300)]
    await asyncio.gather(*(record(recorder, request) for request in requests))
    assert await Ledger(usage_log, database, live_from=recorder.first_segment).settle() == 2600
    assert set(await stored(database)) == set(requests)
    await recorder.close()


async def test_two_tenants_see_their_own_usage_only(database, usage_log):
    recorder = await Recorder.open(usage_log)
    await record(recorder, "req_1")
    await recorder.started(started("req_2", project="prj_2"))
    await recorder.finished(finished("req_2"))
    await recorder.close()
    await Ledger(usage_log, database).settle()
    assert set(await stored(database, "prj_1")) == {"req_1"}
    assert set(await stored(database, "prj_2")) == {"req_2"}


async def test_nothing_is_written_behind_a_torn_frame(usage_log, monkeypatch):
    recorder = await Recorder.open(usage_log)
    await recorder.started(started("req_1"))
    write, torn = os.write, []

    def half(descriptor: int, data: bytes) -> int:
        if torn:
            return write(descriptor, data)
        torn.append(descriptor)
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    await recorder.finished(finished("req_1"))
    await recorder.started(started("req_2"))
    await recorder.finished(finished("req_2"))
    await recorder.close()
    assert torn
    found = [entry.record.request for entry in usage_log.read(Position(0, 0), 100)]
    assert found == ["req_1", "req_1", "req_2", "req_2"]
