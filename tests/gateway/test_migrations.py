"""Every revision goes up and down, and the last one is what the models say."""

import asyncio

import pytest
from sqlalchemy import inspect

from gateway.db import Database
from migrations import runner


async def table_names(database: Database) -> set[str]:
    async with database.engine.connect() as connection:
        names = await connection.run_sync(lambda c: inspect(c).get_table_names())
    return set(names) - {"alembic_version"}


async def test_the_migrated_database_is_what_the_models_say(database):
    assert await runner.differences(database) == []
    assert await database.epoch() == 0


@pytest.mark.parametrize("revision", runner.revisions())
async def test_each_revision_goes_up_down_and_up_again(database_url, revision):
    database = Database(database_url)
    before = revision + "-1" if revision != runner.revisions()[0] else "base"
    await runner.upgrade(database, revision)
    with_it = await table_names(database)
    await runner.downgrade(database, before)
    without_it = await table_names(database)
    await runner.upgrade(database, revision)
    assert without_it < with_it == await table_names(database)
    await database.close()


async def test_going_down_to_base_leaves_nothing(database_url):
    database = Database(database_url)
    await runner.upgrade(database)
    await runner.downgrade(database, "base")
    assert await table_names(database) == set()
    await database.close()


async def test_gateways_that_start_at_once_migrate_once(database_url):
    databases = [Database(database_url) for _ in range(3)]
    await asyncio.gather(*(runner.upgrade(database) for database in databases))
    assert await runner.differences(databases[0]) == []
    for database in databases:
        await database.close()
