"""One consistent picture of a database, while gateways go on writing, and the way back.

SQLite copies itself. Postgres is left to its own ``pg_dump`` and ``pg_restore``, which have to be
of the server's version or newer; both take a password by the environment, where ``ps`` shows none.
"""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol

from alembic.migration import MigrationContext
from sqlalchemy import URL, Connection, inspect, make_url, text

from gateway.db import Database
from migrations.isolation import ROLE

SQLITE_FILE, POSTGRES_FILE = "database.sqlite", "database.dump"
TOOL_TIMEOUT_S = 6 * 3600.0


class DatabaseNotCopied(Exception):
    """A tool is missing, or failed; the message says what it said."""


class DatabaseCopy(Protocol):
    kind: str

    async def save(self, folder: Path) -> None:
        """Raises DatabaseNotCopied."""
        ...

    async def load(self, folder: Path) -> None:
        """Into an empty database. Raises DatabaseNotCopied."""
        ...


def copy_of(url: str) -> DatabaseCopy:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return SqliteCopy(Path(parsed.database or ""))
    return PostgresCopy(parsed)


class SqliteCopy:
    kind = "sqlite"

    def __init__(self, file: Path) -> None:
        self._file = file

    async def save(self, folder: Path) -> None:
        await asyncio.to_thread(self._save, folder / SQLITE_FILE)

    async def load(self, folder: Path) -> None:
        await asyncio.to_thread(self._copy, folder / SQLITE_FILE, self._file)

    def _save(self, target: Path) -> None:
        if not self._file.is_file():
            raise DatabaseNotCopied(f"{self._file} does not exist")
        self._copy(self._file, target)

    def _copy(self, source: Path, target: Path) -> None:
        """By pages, in one read transaction: writers go on beside it."""
        try:
            with (
                closing(sqlite3.connect(source)) as full,
                closing(sqlite3.connect(target)) as empty,
            ):
                full.backup(empty)
        except sqlite3.Error as error:
            raise DatabaseNotCopied(f"{source}: {error}") from error
        target.chmod(0o600)


class PostgresCopy:
    kind = "postgresql"

    def __init__(self, url: URL) -> None:
        self._url = url

    async def save(self, folder: Path) -> None:
        file = str(folder / POSTGRES_FILE)
        await self._run("pg_dump", "--format=custom", "--no-owner", f"--file={file}")
        (folder / POSTGRES_FILE).chmod(0o600)

    async def load(self, folder: Path) -> None:
        database = Database(self._url.render_as_string(hide_password=False))
        try:
            async with database.transaction() as connection:
                for statement in ROLE:  # the policies in the dump are for it
                    await connection.execute(text(statement))
        finally:
            await database.close()
        file = str(folder / POSTGRES_FILE)
        await self._run("pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", file)

    async def _run(self, tool: str, *arguments: str) -> None:
        url = self._url.set(drivername="postgresql", password=None)
        name = url.render_as_string(hide_password=False)
        password = {} if self._url.password is None else {"PGPASSWORD": self._url.password}
        try:
            process = await asyncio.create_subprocess_exec(
                tool, f"--dbname={name}", *arguments,
                env={**os.environ, **password},
                stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise DatabaseNotCopied(f"{tool} is not installed: it comes with Postgres") from error
        try:
            async with asyncio.timeout(TOOL_TIMEOUT_S):
                _, said = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            raise DatabaseNotCopied(f"{tool}: {lines[0] if lines else 'failed'}")


async def schema_of(database: Database) -> str | None:
    """Its revision, or None where there is none."""

    def find(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    async with database.transaction() as connection:
        return await connection.run_sync(find)


async def settled_segment(database: Database, log: str) -> int | None:
    """Which segment of a usage log the database was at. By hand, for its schema may be older."""

    def find(connection: Connection) -> int | None:
        if not inspect(connection).has_table("log_position"):
            return None
        query = text("SELECT segment FROM log_position WHERE log = :log")
        segment: int | None = connection.execute(query, {"log": log}).scalar_one_or_none()
        return segment

    async with database.transaction() as connection:
        return await connection.run_sync(find)


async def is_empty(database: Database) -> bool:
    async with database.transaction() as connection:
        return not await connection.run_sync(lambda sync: inspect(sync).get_table_names())
