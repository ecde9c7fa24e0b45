"""The database: one engine, units of work, and rows that belong to one tenant.

Invariants: every query runs inside ``reading`` or ``unit_of_work``; only these commit. A change
that running gateways must see goes through ``publish``, which moves the epoch in the same
transaction. Queries are written in ``repository.py`` files and here, nowhere else.

On Postgres a reader sees one instant; on SQLite everybody does, and there is one writer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import (
    BigInteger,
    DateTime,
    MetaData,
    Select,
    TypeDecorator,
    select,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from gateway.drivers import CONNECT_TIMEOUT_S, open_engine
from gateway.errors import Conflict, InvalidRequest

EPOCH_ROW = 1
ONE_INSTANT = "REPEATABLE READ"
UNSTORABLE = "22021"  # Postgres: a NUL in a text
# Classes of SQLSTATE, or whole ones, that say nothing about what we asked: it may be asked again.
PASSING = ("08", "40", "53", "57", "58", "25006", "25P03", "55P03")
TENANT_ROLE = "loratorio_tenant"  # see migrations/isolation.py
_WITHIN = text(
    "SELECT set_config('role', :role, true), set_config('loratorio.organisation', :org, true),"
    " set_config('loratorio.project', :project, true)"
)
_PROJECT = text("SELECT current_setting('loratorio.project', true)")
_SET_PROJECT = text("SELECT set_config('loratorio.project', :project, true)")


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Whose rows a transaction is about: an organisation's, or those of one of its projects."""

    organisation: str
    project: str = ""


class DatabaseUnavailable(Exception):
    """The database cannot be reached, or does not answer. Never carries its password."""


class Base(DeclarativeBase):
    """Root of every table; constraints are named, so that migrations can drop them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Utc(TypeDecorator[datetime]):
    """A point in time: aware on the way in and on the way out, also on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert value.tzinfo is not None, "a stored time must say its zone"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


class Epoch(Base):
    """One row; its value moves with every change that gateways must see."""

    __tablename__ = "epoch"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)


class Database:
    """Belongs to one event loop. ``notify`` is awaited after a published change was committed."""

    def __init__(self, url: str, *, notify: Callable[[], Awaitable[None]] | None = None) -> None:
        self._threads: list[Thread] = []  # of SQLite's connections
        self.engine = open_engine(url, self._threads)
        self._notify = notify
        sqlite_mode = self.engine.dialect.name == "sqlite"
        self.writer = self.engine.execution_options(begin="IMMEDIATE")
        self._reader = (
            self.engine
            if sqlite_mode
            else self.engine.execution_options(isolation_level=ONE_INSTANT)
        )

    @asynccontextmanager
    async def reading(self, *, within: Tenancy | None = None) -> AsyncIterator[AsyncSession]:
        """A session over one consistent view. Changes made in it are not kept.

        ``within``: on Postgres, only the rows of that tenant exist. None: all do.
        """
        async with _connected(self._reader, within) as session:
            yield session

    @asynccontextmanager
    async def unit_of_work(self, *, within: Tenancy | None = None) -> AsyncIterator[AsyncSession]:
        """A session whose changes are committed when the block ends, and undone if it raises."""
        async with _connected(self.writer, within) as session:
            yield session
            await session.commit()

    @asynccontextmanager
    async def trial(self) -> AsyncIterator[AsyncSession]:
        """A session that may write, to see what would come of it, beside no publication that is
        ``alone``. Nothing is kept."""
        async with _connected(self.writer, None) as session:
            await session.get(Epoch, EPOCH_ROW, with_for_update=True)
            yield session

    @asynccontextmanager
    async def publish(
        self, *, within: Tenancy | None = None, alone: bool = False
    ) -> AsyncIterator[AsyncSession]:
        """A unit of work that every running gateway sees within a second.

        ``alone``: none of its kind runs beside it, as on SQLite never does: for a change that
        looks at what there is before it writes.
        """
        async with self.unit_of_work(within=within) as session:
            if alone:
                await session.get(Epoch, EPOCH_ROW, with_for_update=True)
            yield session
            await session.flush()
            row = await session.get(Epoch, EPOCH_ROW, with_for_update=True)
            assert row is not None, "the migrations make the epoch row"
            row.value += 1
        if self._notify is not None:
            await self._notify()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A bare connection whose changes are committed at the end: for migrations."""
        connection = self.writer.connect()
        async with _named_failures(), _connecting():
            await connection.start()
        try:
            async with _named_failures(), connection.begin():
                yield connection
        finally:
            await connection.close()

    async def epoch(self) -> int:
        """Asked several times a second, so without a session."""
        connection = self._reader.connect()
        async with _named_failures(), _connecting():
            await connection.start()
        try:
            async with _named_failures():
                found = await connection.exec_driver_sql("SELECT value FROM epoch")
                value: int = found.scalar_one()
                return value
        finally:
            await connection.close()

    async def close(self) -> None:
        await self.engine.dispose()
        # One that was cut off in the middle still reports to the loop, which must be there.
        for thread in self._threads:
            if thread.is_alive():
                await asyncio.to_thread(thread.join, CONNECT_TIMEOUT_S)


async def read_epoch(session: AsyncSession) -> int:
    row = await session.get(Epoch, EPOCH_ROW)
    assert row is not None, "the migrations make the epoch row"
    return row.value


class Tenanted(Base):
    """A row of one project."""

    __abstract__ = True

    project_id: Mapped[str]


def is_postgres(session: AsyncSession) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def sees_one_instant(session: AsyncSession) -> bool:
    """Whether all statements of its transaction see the same: on SQLite they do, and a writer is
    the only one; on Postgres those of ``reading`` do."""
    options = session.get_bind().engine.get_execution_options()
    return not is_postgres(session) or options.get("isolation_level") == ONE_INSTANT


Row = TypeVar("Row", bound=Tenanted)


class TenantRepository(Generic[Row]):
    """Queries over one project's rows: every select starts from ``mine``."""

    rows: ClassVar[type[Tenanted]]

    def __init__(self, session: AsyncSession, project: str) -> None:
        self._session = session
        self.project = project

    def mine(self) -> Select[Row]:
        statement: Select[Any] = select(self.rows).where(self.rows.project_id == self.project)
        return statement

    def add(self, row: Row) -> None:
        assert row.project_id == self.project, "a tenant's repository holds its own rows only"
        self._session.add(row)


@asynccontextmanager
async def _connected(engine: AsyncEngine, within: Tenancy | None) -> AsyncIterator[AsyncSession]:
    async with _named_failures(), AsyncSession(engine, expire_on_commit=False) as session:
        async with _connecting():
            await session.connection()
        if within is not None and is_postgres(session):  # until the transaction ends
            names = {"org": within.organisation, "project": within.project}
            await session.execute(_WITHIN, {"role": TENANT_ROLE, **names})
        yield session


@asynccontextmanager
async def across_projects(session: AsyncSession) -> AsyncIterator[None]:
    """For what an organisation keeps in one order, whatever the project: its audit log.

    On Postgres a transaction about a project sees the rows of its whole organisation meanwhile.
    """
    if not is_postgres(session):
        yield
        return
    before = (await session.execute(_PROJECT)).scalar_one()
    await session.execute(_SET_PROJECT, {"project": ""})
    yield
    await session.execute(_SET_PROJECT, {"project": before or ""})


@asynccontextmanager
async def _connecting() -> AsyncIterator[None]:
    """Whatever goes wrong here means that there is no database: refused, wrong name, password."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseUnavailable(f"database: {error.orig}") from error
    except OSError as error:
        raise DatabaseUnavailable(f"database: {error}") from error


def _passing(error: DBAPIError) -> bool:
    """The database was away, full, stopping, or made two of us take turns: not a fault of ours."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return (
        error.connection_invalidated
        or isinstance(error, OperationalError | InterfaceError)
        or state.startswith(PASSING)
    )


@asynccontextmanager
async def _named_failures() -> AsyncIterator[None]:
    """Turns what the drivers raise into DatabaseUnavailable, or Conflict for a lost race."""
    try:
        yield
    except IntegrityError as error:
        raise Conflict("another change came first; look again, then repeat") from error
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == UNSTORABLE:
            raise InvalidRequest("A name or text holds a character that none can have.") from error
        if not _passing(error):  # a fault of ours
            raise
        raise DatabaseUnavailable(f"database: {error.orig}") from error
    except (ConnectionError, TimeoutError) as error:
        raise DatabaseUnavailable(f"database: {error or type(error).__name__}") from error
