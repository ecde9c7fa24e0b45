"""Every revision goes up and down, and the last one is what the models say."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect

from gateway.db import Database
from gateway.identity.models import Project
from gateway.identity.service import IdentityService
from migrations import runner

pytestmark = pytest.mark.slow
FIRST_RELEASE = "adapter_base"  # the schema of 0.1.0
ADDS = {"add_column", "create_table", "create_index", "create_check_constraint"}
HARMLESS = {"execute", "batch_alter_table", "get_bind"}


async def columns(database: Database) -> set[str]:
    """Of every table, as table.column."""

    def find(connection: Connection) -> set[str]:
        seen = inspect(connection)
        names = set(seen.get_table_names()) - {"alembic_version"}
        return {f"{name}.{column['name']}" for name in names for column in seen.get_columns(name)}

    async with database.engine.connect() as connection:
        return await connection.run_sync(find)


async def test_the_migrated_database_is_what_the_models_say(database):
    assert await runner.differences(database) == []
    assert await database.epoch() == 0


@pytest.mark.parametrize("revision", runner.revisions())
async def test_each_revision_goes_up_down_and_up_again(database_url, revision):
    database = Database(database_url)
    before = revision + "-1" if revision != runner.revisions()[0] else "base"
    await runner.upgrade(database, revision)
    with_it = await columns(database)
    await runner.downgrade(database, before)
    without_it = await columns(database)
    await runner.upgrade(database, revision)
    assert without_it <= with_it == await columns(database)  # some change no column
    await database.close()


async def test_going_down_to_base_leaves_nothing(database_url):
    database = Database(database_url)
    await runner.upgrade(database)
    await runner.downgrade(database, "base")
    assert await columns(database) == set()
    await database.close()


async def test_gateways_that_start_at_once_migrate_once(database_url):
    databases = [Database(database_url) for _ in range(3)]
    await asyncio.gather(*(runner.upgrade(database) for database in databases))
    assert await runner.differences(databases[0]) == []
    for database in databases:
        await database.close()


async def test_keys_and_their_owners_survive_the_quotas(database_url):
    database = Database(database_url)
    await runner.upgrade(database, "rollups")
    made = "'2026-12-01 00:00:00+00:00'"
    async with database.transaction() as connection:
        for row in (
            f"organisation (id, name, created_at) VALUES ('org_1', 'acme', {made})",
            f"project (id, organisation_id, name, created_at) VALUES ('p', 'org_1', 'a', {made})",
            "api_key (id, organisation_id, project_id, kind, name, hash, pepper_version, last4,"
            f" created_at) VALUES ('key_1', 'org_1', 'p', 'project', 'n', 'h', 1, 'abcd', {made})",
        ):
            await connection.exec_driver_sql(f"INSERT INTO {row}")
    await runner.upgrade(database)
    async with database.transaction() as connection:
        found = await connection.exec_driver_sql(
            "SELECT billing, api_key.id FROM organisation JOIN api_key"
            " ON organisation_id = organisation.id"
        )
        assert found.all() == [("postpaid", "key_1")]
    await runner.downgrade(database, "rollups")
    await runner.upgrade(database)
    assert await runner.differences(database) == []
    await database.close()


@pytest.mark.parametrize("change", ["UPDATE audit_event SET number = 2", "DELETE FROM audit_event"])
async def test_the_audit_log_only_grows(database, change):
    row = (
        "INSERT INTO audit_event (id, organisation_id, number, at, type, actor_type, actor_id,"
        " object_id, change, previous, hash) VALUES ('a', 'o', 1, '2026-12-01 00:00:00+00:00',"
        " 't', 'api_key', 'k', 'x', '{}', '', 'h')"
    )
    async with database.transaction() as connection:
        await connection.exec_driver_sql(row)
    with pytest.raises(Exception, match=r"append-only|another change"):
        async with database.transaction() as connection:
            await connection.exec_driver_sql(change)


async def test_a_program_of_the_release_before_serves_a_schema_that_was_added_to(database_url):
    """As during a rolling upgrade: it starts, and reads and writes what it knows."""
    database = Database(database_url)
    await runner.upgrade(database)
    async with database.transaction() as connection:  # what a later release might do
        await connection.exec_driver_sql("ALTER TABLE project ADD COLUMN colour VARCHAR(8)")
        await connection.exec_driver_sql("CREATE TABLE later (id VARCHAR(8) PRIMARY KEY)")
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'later'")
    await runner.upgrade(database)
    async with database.publish() as session:
        made = await IdentityService(session, datetime.now(UTC)).create_project("acme")
    async with database.reading() as session:
        found = await session.get(Project, made.id)
        assert found is not None
        assert found.name == "acme"
    await database.close()


def test_revisions_since_the_first_release_only_add():
    """So that programs of two releases may share a database. What is no longer used is taken away
    by the release after the one that stopped using it, and named here."""
    folder = Path(runner.__file__).parent / "versions"
    taken_away: set[str] = set()
    first = runner.revisions().index(FIRST_RELEASE) + 1
    for revision in runner.revisions()[first:]:
        mine = f'\nrevision = "{revision}"\n'
        (file,) = [f for f in folder.glob("*.py") if mine in f.read_text()]
        up = file.read_text().partition("def upgrade")[2].partition("def downgrade")[0]
        called = set(re.findall(r"\b(?:op|batch|table)\.(\w+)\(", up)) - HARMLESS
        assert called <= ADDS or revision in taken_away, f"{revision}: {called - ADDS}"
