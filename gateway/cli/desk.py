"""What every operator's command has at hand: the database, the data directory, the time."""

import argparse
import asyncio
import getpass
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway import redis
from gateway.audit.service import Actor, AuditLog
from gateway.cli.stores import Stores, add_stores, stores_of
from gateway.cli.table import Row, as_json, as_table
from gateway.config import ConfigError
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import GatewayError, GatewayUnreachable, ResourceNotFound
from gateway.identity.pepper import Peppers
from gateway.limits.redis_store import RedisStore
from gateway.limits.store import Purse
from migrations import runner

REDIS_TIMEOUT_S = 1.0

# Any: each program's own kind of parser.
Commands: TypeAlias = "argparse._SubParsersAction[Any]"
Command = Callable[["Desk", argparse.Namespace], Awaitable[Row | Sequence[Row]]]

NOBODY = ""  # whose audit log has what belongs to no organisation


class Desk:
    """Belongs to one command."""

    def __init__(self, database: Database, stores: Stores) -> None:
        self.database = database
        self.stores = stores
        self.files = stores.files
        self.now = datetime.now(UTC)
        self.exit_code = 0  # where the answer itself is bad news
        self._redis_url = stores.redis_url

    @classmethod
    @asynccontextmanager
    async def open(cls, arguments: argparse.Namespace, *, make: bool) -> AsyncIterator["Desk"]:
        """The migrated database. Only ``make`` begins one where there is nothing."""
        stores = stores_of(arguments)
        files, given = stores.files, stores.database_url
        if not files.root.is_dir() and not make and given is None:
            raise ResourceNotFound(
                f"--data-dir {files.root} does not exist; `loratorio serve` makes it"
            )
        files.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        desk = cls(Database(files.database(given)), stores)
        try:
            await runner.upgrade(desk.database)
            yield desk
        finally:
            await desk.database.close()

    async def note(
        self,
        session: AsyncSession,
        organisation: str,
        kind: str,
        object_id: str,
        *,
        project: str | None = None,
        change: dict[str, Any] | None = None,
    ) -> None:
        """In the audit log, within the change's own transaction."""
        await AuditLog(session, organisation, self.now).add(
            kind, object_id, actor=Actor("operator", _login()), project=project, change=change
        )

    def peppers(self) -> Peppers:
        """The server's: keys hashed with others would be nobody's. Raises ConfigError."""
        return Peppers.load(self.stores.pepper, self.files.pepper)

    @property
    def has_redis(self) -> bool:
        return self._redis_url is not None

    async def counters(self) -> list[Purse]:
        """Of budgets, as Redis has them. Raises GatewayUnreachable."""
        assert self._redis_url is not None
        store = RedisStore(redis.connect(self._redis_url, timeout_s=REDIS_TIMEOUT_S))
        try:
            return await store.purses()
        except RedisError as error:
            raise GatewayUnreachable(f"--redis-url: {error}") from error
        finally:
            await store.close()

    async def announce(self) -> None:
        """Gateways look by themselves four times a second; with Redis they look at once."""
        if self._redis_url is not None:
            client = redis.connect(self._redis_url, timeout_s=REDIS_TIMEOUT_S)
            await redis.announce(client)
            await client.aclose()


def _login() -> str:
    """Of the person at the command line, as far as the system knows."""
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):  # a container without users
        return "unknown"


def add_command(
    group: Commands,
    name: str,
    run: Command,
    *,
    help: str,
    make: bool = False,
    render: Callable[[Sequence[Row]], str] = as_table,
) -> argparse.ArgumentParser:
    """A command with the options all of them take, that answers what ``run`` returns."""
    parser: argparse.ArgumentParser = group.add_parser(
        name, help=help, description=help, allow_abbrev=False
    )
    add_stores(parser)
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=lambda arguments: _answer(run, arguments, make=make, render=render))
    return parser


def _answer(
    run: Command,
    arguments: argparse.Namespace,
    *,
    make: bool,
    render: Callable[[Sequence[Row]], str],
) -> int:
    async def attend() -> tuple[Row | Sequence[Row], int]:
        async with Desk.open(arguments, make=make) as desk:
            answer = await run(desk, arguments)
            await desk.announce()
            return answer, desk.exit_code

    try:
        answer, code = asyncio.run(attend())
    except (GatewayError, ConfigError, DatabaseUnavailable, OSError) as error:
        print(f"loratorio: error: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        print(as_json(answer))
    else:
        print(render([answer] if isinstance(answer, dict) else answer))
    return code
