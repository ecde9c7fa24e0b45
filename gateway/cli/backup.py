"""``loratorio backup`` and ``loratorio restore``: a server's truth as a folder, and back."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.backup.backup import NotEmpty, Source, back_up, restore
from gateway.backup.databases import DatabaseNotCopied
from gateway.backup.manifest import BackupInvalid, Manifest
from gateway.cli.desk import Commands
from gateway.cli.stores import add_stores, stores_of
from gateway.cli.table import Row, as_json, as_table
from gateway.cli.version import installed_version
from gateway.config import ConfigError
from gateway.db import DatabaseUnavailable

Act = Callable[[Source, argparse.Namespace], Coroutine[Any, Any, Manifest]]


def add(group: Commands) -> None:
    saved = _command(group, "backup", _back_up, "write all that must not be lost into a folder")
    saved.add_argument("folder", type=Path, metavar="DIR", help="new, or empty")
    saved.add_argument(
        "--without-database", action="store_true",
        help="the data directory alone: of all gateways but one of those that share a database",
    )  # fmt: skip
    loaded = _command(group, "restore", _restore, "make a server's state from a backup")
    loaded.add_argument("folder", type=Path, metavar="DIR", help="that `backup` wrote")


def _command(group: Commands, name: str, act: Act, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = group.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    add_stores(parser)
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=lambda arguments: _answer(act, arguments))
    return parser


async def _back_up(source: Source, arguments: argparse.Namespace) -> Manifest:
    return await back_up(
        source, arguments.folder, now=datetime.now(UTC), release=installed_version(),
        with_database=not arguments.without_database,
    )  # fmt: skip


async def _restore(source: Source, arguments: argparse.Namespace) -> Manifest:
    return await restore(source, arguments.folder)


def _answer(act: Act, arguments: argparse.Namespace) -> int:
    """The database is not migrated on the way: a backup is what one makes before that."""
    try:
        server = stores_of(arguments)
        source = Source(
            files=server.files,
            database=server.files.database(server.database_url),
            adapter_store=server.adapter_store,
        )
        manifest = asyncio.run(act(source, arguments))
    except (BackupInvalid, ConfigError, DatabaseNotCopied, DatabaseUnavailable, NotEmpty,
            OSError) as error:  # fmt: skip
        print(f"loratorio: error: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    row: Row = {
        "made_at": manifest.made_at,
        "release": manifest.release,
        "database": manifest.database or "not in it",
        "schema": manifest.schema or "",
        "files": len(manifest.pieces),
        "bytes": sum(piece.size for piece in manifest.pieces),
        "adapters": manifest.adapter_store or "in it",
    }
    print(as_json(row) if arguments.json else as_table([row]))
    return 0
