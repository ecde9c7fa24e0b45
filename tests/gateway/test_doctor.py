"""The checkup says what is wrong and what to do, by its exit code too, and changes nothing."""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.checkup import books, machine, stores
from gateway.checkup.finding import Finding, Health
from gateway.cli import doctor
from gateway.config import DataDir, Secret
from gateway.db import Database
from migrations import runner
from tests.gateway.test_books import NOON, Books

SMI = "NVIDIA H200, 143771, 1024, 570.1, {errors}"


def worst(findings: list[Finding], what: str) -> Health | None:
    order = list(Health)
    return max((f.health for f in findings if f.what == what), key=order.index, default=None)


async def gathered(findings) -> list[Finding]:
    return [finding async for finding in findings]


def smi(folder: Path, line: str, code: int = 0) -> str:
    program = folder / "smi"
    program.write_text(f"#!/bin/sh\necho '{line}'\nexit {code}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("line", "code", "health"),
    [
        (SMI.format(errors=0), 0, Health.GOOD),
        (SMI.format(errors="[N/A]"), 0, Health.GOOD),
        (SMI.format(errors=3), 0, Health.BAD),
        ("Failed to initialize NVML", 9, Health.BAD),
    ],
)
def test_a_gpu_is_judged_by_what_its_driver_says(tmp_path, line, code, health):
    [finding] = machine.gpu(smi(tmp_path, line, code))
    assert finding.health is health
    assert bool(finding.do) == (health is not Health.GOOD)


def test_without_a_driver_the_cpu_computes(tmp_path):
    [finding] = machine.gpu(str(tmp_path / "none"))
    assert finding.health is Health.WARNING


def test_secrets_that_others_can_read_are_bad(tmp_path):
    files = DataDir(tmp_path)
    files.pepper.write_text("x")
    files.pepper.chmod(0o644)
    found = list(machine.data_dir(files))
    assert worst(found, "secrets") is Health.BAD
    files.pepper.chmod(0o600)
    assert worst(list(machine.data_dir(files)), "secrets") is None


async def test_a_database_that_is_away_is_said_without_its_password(tmp_path):
    away = Database("postgresql+asyncpg://me:secret@127.0.0.1:1/none")
    found = await gathered(stores.database(away))
    await away.close()
    assert worst(found, "database") is Health.BAD
    assert "secret" not in repr(found)


async def test_an_old_schema_is_told_and_left_as_it_is(tmp_path):
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'old.db'}")
    older = runner.revisions()[-2]
    await runner.upgrade(database, older)
    assert worst(await gathered(stores.database(database)), "schema") is Health.WARNING
    async with database.reading() as session:
        now = (await session.execute(text("SELECT version_num FROM alembic_version"))).scalar_one()
    await database.close()
    assert now == older


async def test_redis_must_keep_what_it_is_told(redis_url):
    found = await gathered(stores.limits(Secret(redis_url)))
    assert {finding.health for finding in found} == {Health.GOOD}
    assert {"redis", "redis clock", "redis eviction"} <= {finding.what for finding in found}


async def test_redis_that_is_away_is_bad():
    [finding] = await gathered(stores.limits(Secret("redis://127.0.0.1:1")))
    assert finding.health is Health.BAD


async def test_books_that_differ_and_requests_without_a_price_are_found(database, tmp_path):
    ours = Books(database, tmp_path)
    await ours.price("1")
    await ours.serve("req_1")
    async with database.unit_of_work() as session:
        await session.execute(text("UPDATE usage_event SET price_id=NULL, cost_nano=NULL,"
                                   " input_nano=0, cached_nano=0, output_nano=0"))  # fmt: skip
    found = await gathered(books.ledger(database, NOON))
    assert worst(found, "prices") is Health.WARNING
    assert worst(found, "books") is Health.GOOD
    await ours.price("2")
    async with database.unit_of_work() as session:
        await session.execute(
            text("INSERT INTO closed_period (period, closed_at, events, cost_nano)"
                 " VALUES ('2026-11-01', '2026-12-01 00:00:00', 7, 7)")
        )  # fmt: skip
    found = await gathered(books.ledger(database, NOON))
    assert worst(found, "books") is Health.BAD


@pytest.mark.parametrize("seconds", [-40, 5, 0])
def test_clocks_that_differ_are_told(seconds):
    finding = stores._clocks("database", float(seconds))
    wanted = {-40: Health.BAD, 5: Health.WARNING, 0: Health.GOOD}
    assert finding.health is wanted[seconds]


def test_the_command_says_all_in_json_and_fails_where_something_is_bad(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    doctor.add(parser.add_subparsers())
    missing = str(tmp_path / "none")
    arguments = parser.parse_args(["doctor", "--data-dir", missing, "--json"])
    assert arguments.run(arguments) == 1
    told = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert told["data directory"]["health"] == "bad"
    assert told["data directory"]["do"]
    assert not Path(missing).exists()


def test_a_month_begins_with_its_first_moment():
    assert stores.month_start(NOON) == datetime(2026, 11, 1, tzinfo=UTC)
