"""Units of work: all or nothing, seen by others only when committed, one writer after another."""

import asyncio
import sqlite3
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.identity.models import Organisation
from gateway.identity.repository import IdentityRepository

NOW = datetime(2026, 11, 30, 12, 30, 15, 123456, tzinfo=UTC)


def organisation(name: str = "acme", identity: str = "org_1") -> Organisation:
    return Organisation(id=identity, name=name, created_at=NOW)


async def test_times_come_back_aware_and_exact(database):
    async with database.unit_of_work() as session:
        session.add(organisation())
    async with database.reading() as session:
        row = await IdentityRepository(session).organisation("acme")
        assert row.created_at == NOW


async def test_a_unit_of_work_that_raises_leaves_nothing(database):
    async def fail() -> None:
        async with database.publish() as session:
            session.add(organisation())
            await session.flush()
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    async with database.reading() as session:
        assert await IdentityRepository(session).organisation("acme") is None
    assert await database.epoch() == 0


async def test_only_published_changes_move_the_epoch(database):
    async with database.unit_of_work() as session:
        session.add(organisation())
    assert await database.epoch() == 0
    async with database.publish() as session:
        session.add(organisation("other", "org_2"))
    assert await database.epoch() == 1


async def test_publishing_at_once_counts_every_time(database):
    async def one(number: int) -> None:
        async with database.publish() as session:
            session.add(organisation(f"o{number}", f"org_{number}"))

    await asyncio.gather(*(one(number) for number in range(20)))
    assert await database.epoch() == 20


async def test_notify_is_called_after_the_commit(migrated_url, database):
    seen = []

    async def notify() -> None:
        seen.append(await database.epoch())

    other = Database(migrated_url, notify=notify)
    async with other.publish() as session:
        session.add(organisation())
        assert seen == []
    assert seen == [1]
    await other.close()


async def test_readers_see_one_instant_and_do_not_block_writers(database):
    async with database.reading() as session:
        before = (await session.execute(text("SELECT count(*) FROM organisation"))).scalar_one()
        async with database.unit_of_work() as writer:
            writer.add(organisation())
        after = (await session.execute(text("SELECT count(*) FROM organisation"))).scalar_one()
    assert (before, after) == (0, 0)


async def test_a_broken_rule_is_a_conflict(database):
    async def fail() -> None:
        async with database.unit_of_work() as session:
            session.add(organisation("acme", "org_1"))
            session.add(organisation("acme", "org_2"))

    with pytest.raises(Conflict):
        await fail()


async def test_references_are_enforced_on_sqlite_too(database):
    with pytest.raises(Conflict):
        async with database.unit_of_work() as session:
            await session.execute(
                text(
                    "INSERT INTO project (id, organisation_id, name, created_at)"
                    " VALUES ('prj_1', 'org_none', 'x', '2026-11-30')"
                )
            )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://u:hunter2@127.0.0.1:1/d",
        "postgresql+asyncpg://u:hunter2@/d?host=/nowhere",
        "sqlite+aiosqlite:////nowhere/at/all.db",
    ],
)
async def test_a_database_that_is_not_there_has_a_name_and_no_password(url):
    database = Database(url)
    with pytest.raises(DatabaseUnavailable) as refusal:
        await database.epoch()
    assert "hunter2" not in str(refusal.value)
    await database.close()


async def test_a_database_that_does_not_exist_is_named(postgres):
    uri = postgres.uri.replace("postgresql://", "postgresql+asyncpg://")
    database = Database(uri.replace("/postgres?", "/missing?"))
    with pytest.raises(DatabaseUnavailable, match="does not exist"):
        await database.epoch()
    await database.close()


@pytest.mark.parametrize("backend", ["postgres"])
async def test_connections_that_postgres_cut_are_replaced(database, migrated_url):
    operator = Database(migrated_url)

    async def cut(*, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        async with operator.unit_of_work() as session:
            await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )

    async def long_query() -> None:
        async with database.reading() as session:
            await session.execute(text("SELECT pg_sleep(20)"))

    assert await database.epoch() == 0
    await cut()  # while idle: nobody notices
    assert await database.epoch() == 0
    busy = asyncio.gather(long_query(), cut(after_s=0.3))
    with pytest.raises(DatabaseUnavailable):
        await busy
    assert await database.epoch() == 0
    await operator.close()


@pytest.mark.parametrize("backend", ["postgres"])
async def test_a_fault_of_ours_is_not_called_unavailability(database):
    async def misspell() -> None:
        async with database.reading() as session:
            await session.execute(text("SELECT nothing FROM epoch"))

    with pytest.raises(SQLAlchemyError):
        await misspell()


async def test_sqlite_keeps_a_write_ahead_log(tmp_path):
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    async with database.reading() as session:
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
        assert (await session.execute(text("PRAGMA foreign_keys"))).scalar_one() == 1
        assert (await session.execute(text("PRAGMA journal_size_limit"))).scalar_one() == 32 << 20
        assert (await session.execute(text("PRAGMA busy_timeout"))).scalar_one() == 10_000
    await database.close()


async def test_a_new_sqlite_file_that_another_writes_is_waited_for(tmp_path):
    """SQLite refuses at once to switch it to a write-ahead log meanwhile."""
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'new.db'}")

    async def mode() -> str:
        async with database.transaction() as connection:
            return (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one()

    waiting = asyncio.create_task(mode())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    assert await waiting == "wal"
    await database.close()
