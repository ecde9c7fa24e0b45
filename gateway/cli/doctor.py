"""``loratorio doctor``: looks at everything a server needs, and says what to do.

Changes nothing: the database is not even migrated. Exits with 1 where something is bad.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime

from gateway.checkup import books, machine, stores
from gateway.checkup.finding import Finding, Health, bad
from gateway.cli.desk import Commands
from gateway.cli.stores import add_stores, stores_of
from gateway.cli.table import Row, as_json
from gateway.config import ConfigError, DataDir, Secret
from gateway.db import Database

MARKS = {Health.GOOD: ("ok", "32"), Health.WARNING: ("warn", "33"), Health.BAD: ("BAD", "31")}


def add(group: Commands) -> None:
    text = "look at GPU, stores, clocks, configuration and books, and say what to do"
    parser = group.add_parser("doctor", help=text, description=text, allow_abbrev=False)
    add_stores(parser)
    parser.add_argument("--adapter-store", metavar="s3://…", help="of the server, if it has one")
    parser.add_argument("--gateway", metavar="URL", help="of one that should be running")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    found: list[Finding] = []
    async for finding in examine(arguments):
        found.append(finding)
        if not arguments.json:
            print(_line(finding), flush=True)
    if arguments.json:
        rows: list[Row] = [
            {"what": f.what, "health": f.health.value, "said": f.said, "do": f.do} for f in found
        ]
        print(as_json(rows))
    else:
        counts = {h: sum(f.health is h for f in found) for h in Health}
        warnings = counts[Health.WARNING]
        print(f"{counts[Health.BAD]} bad, {warnings} warning{'' if warnings == 1 else 's'}")
    return 1 if any(f.health is Health.BAD for f in found) else 0


async def examine(arguments: argparse.Namespace) -> AsyncIterator[Finding]:
    for finding in machine.gpu():
        yield finding
    try:
        server = stores_of(arguments)
    except (ConfigError, OSError) as error:
        yield bad("settings", str(error), "correct the file that --settings names")
        return
    files = server.files
    if not files.root.is_dir():
        yield bad(
            "data directory",
            f"{files.root} does not exist",
            "`loratorio serve` makes it; or name the server's with --data-dir",
        )
        if server.database_url is None:
            return
    else:
        for finding in _local(files, arguments.adapter_store or server.adapter_store):
            yield finding
    if server.redis_url is not None:
        async for finding in stores.limits(server.redis_url):
            yield finding
    async for finding in _stored(files, server.database_url):
        yield finding
    if arguments.gateway:
        async for finding in books.gateway(arguments.gateway):
            yield finding


def _local(files: DataDir, store: str | None) -> Iterable[Finding]:
    yield from machine.data_dir(files)
    yield from stores.adapters(store or str(files.adapter_store), files)


async def _stored(files: DataDir, url: Secret | None) -> AsyncIterator[Finding]:
    """The database, and the books in it."""
    if url is None and not (files.root / "loratorio.db").exists():
        yield bad(
            "database",
            f"no database in {files.root}",
            "`loratorio serve` makes it; or name the server's with --database-url",
        )
        return
    try:
        database = Database(files.database(url))
    except ConfigError as error:
        yield bad("database", str(error), "correct --database-url")
        return
    try:
        at_head = False
        async for finding in stores.database(database):
            at_head |= finding.what == "schema" and finding.health is Health.GOOD
            yield finding
        if at_head:  # the books are read by this version's tables
            async for finding in books.ledger(database, datetime.now(UTC)):
                yield finding
    finally:
        await database.close()


def _line(finding: Finding) -> str:
    mark, colour = MARKS[finding.health]
    shown = f"\x1b[{colour}m{mark:>4}\x1b[0m" if sys.stdout.isatty() else f"{mark:>4}"
    line = f"{shown}  {finding.what}: {finding.said}"
    return f"{line}\n      → {finding.do}" if finding.do else line
