"""How SQLite and Postgres are opened.

SQLite runs in WAL mode with foreign keys on; writers take the write lock at once, so that two of
them wait for each other instead of failing.
"""

import asyncio
import sqlite3
import time
from threading import Thread
from typing import Any

import aiosqlite
from sqlalchemy import event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from gateway.config import ConfigError

BUSY_TIMEOUT_MS = 10_000  # how long a SQLite writer waits for another
SWITCHING_S = 0.01
JOURNAL_BYTES = 32 << 20  # of SQLite's write-ahead log, once it was copied into the database
COMMAND_TIMEOUT_S = 20.0  # the longest wait for one answer of Postgres
CONNECT_TIMEOUT_S = 10.0
# On the server, should we be stopped in the middle: our locks must not outlive these.
POSTGRES_SETTINGS = {
    "application_name": "loratorio",
    "idle_in_transaction_session_timeout": "30s",
    "lock_timeout": "10s",
    "statement_timeout": "20s",
    "timezone": "UTC",
}


def open_engine(url: str, threads: list[Thread]) -> AsyncEngine:
    """Raises ConfigError, which does not quote the address: it holds a password."""
    try:
        read = make_url(url)
    except (ValueError, ArgumentError) as error:
        raise ConfigError(
            "the database URL is no address like postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from error
    if read.get_backend_name() == "sqlite":
        file = read.database or ":memory:"

        async def connect() -> aiosqlite.Connection:
            connection = aiosqlite.connect(file, timeout=BUSY_TIMEOUT_MS / 1000)
            threads[:] = [thread for thread in threads if thread.is_alive()]
            threads.append(connection._thread)
            connection._thread.daemon = True
            return await connection

        engine = create_async_engine(url, async_creator=connect)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": COMMAND_TIMEOUT_S,
            "server_settings": POSTGRES_SETTINGS,
        },
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions only before writes; _begin_sqlite does it for all.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    _write_ahead(cursor)
    for pragma in (
        "synchronous = FULL",  # a settled usage log is deleted: the commit must be on disk
        "foreign_keys = ON",
        f"journal_size_limit = {JOURNAL_BYTES}",  # what a long reader made of it is given back
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """The first to open a new file switches it, and SQLite lets nobody wait for that: others find
    it locked at once, whatever their busy_timeout."""
    last = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > last:
                raise
        await_only(asyncio.sleep(SWITCHING_S))


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get("begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
