"""A server's truth as one folder, taken while it serves.

The order makes it consistent. The engine's record and the usage log come first, then the database:
what the log's copy lacks was settled before or had not ended; what both have counts once, by its
event's id. Adapters and files come last: all that the database names was there before it was
copied. Redis is not in it: every counter begins again from the ledger.
"""

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.backup.databases import copy_of, is_empty, schema_of, settled_segment
from gateway.backup.manifest import BackupInvalid, Manifest, pieces
from gateway.config import DataDir
from gateway.db import Database
from gateway.usage.log import UsageLog

RECORDS = ("engine", "usage", "usage-*")  # folders of the data directory, before the database
CONTENT = ("adapters", "files")  # after it
SINGLE = ("pepper", "base.json", "webhook-secret")
LEFT_OUT = ("adapter-cache",)  # of any folder: copies
UNFINISHED = (".part", ".tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is backed up, and what is restored into."""

    files: DataDir
    database: str  # SQLAlchemy URL
    adapter_store: str | None  # None: in the data directory


class NotEmpty(ValueError):
    """A backup is restored into nothing else than nothing; the message says what is there."""


async def back_up(
    source: Source, folder: Path, *, now: datetime, release: str, with_database: bool
) -> Manifest:
    """Raises NotEmpty, DatabaseNotCopied, DatabaseUnavailable or OSError."""
    _make(folder, "every backup has a folder of its own")
    data = folder / "data"
    _make(data, "every backup has a folder of its own")
    for name in _records(source.files.root):
        _copy(source.files.root / name, data / name)
    kind = schema = None
    if with_database:
        copier = copy_of(source.database)
        await copier.save(folder)
        kind, schema = copier.kind, await _schema(source.database)
    for name in (*CONTENT, *SINGLE):
        _copy(source.files.root / name, data / name)
    manifest = Manifest(
        made_at=now, release=release, database=kind, schema=schema,
        adapter_store=source.adapter_store, pieces=tuple(pieces(folder)),
    )  # fmt: skip
    manifest.write(folder)
    return manifest


async def restore(source: Source, folder: Path) -> Manifest:
    """Raises BackupInvalid, NotEmpty, DatabaseNotCopied, DatabaseUnavailable or OSError."""
    manifest = Manifest.read(folder)
    manifest.check(folder)
    root = source.files.root
    _make(root, "restore into a new data directory")
    if manifest.database is not None:
        await _restore_database(source, manifest, folder)
    for name in (*_records(folder / "data"), *CONTENT, *SINGLE):
        _copy(folder / "data" / name, root / name)
    await _continue_log(source)
    return manifest


def _records(root: Path) -> list[str]:
    """The names of those that there are."""
    return [found.name for pattern in RECORDS for found in sorted(root.glob(pattern))]


async def _restore_database(source: Source, manifest: Manifest, folder: Path) -> None:
    copier = copy_of(source.database)
    if copier.kind != manifest.database:
        raise BackupInvalid(f"{folder} has a {manifest.database} database, not {copier.kind}")
    database = Database(source.database)
    try:
        empty = copier.kind == "sqlite" or await is_empty(database)  # the folder was empty
    finally:
        await database.close()
    if not empty:
        raise NotEmpty("the database is not empty: restore into a new one")
    await copier.load(folder)


async def _continue_log(source: Source) -> None:
    """The database may have been settled further than a log's older copy goes. What is written
    from now on belongs after that: an empty segment takes the number that it was at."""
    for folder in source.files.usage_logs():
        if (folder / "id").is_file():
            await _continue(source, UsageLog(folder))


async def _continue(source: Source, log: UsageLog) -> None:
    database = Database(source.database)
    try:
        segment = await settled_segment(database, log.id)
    finally:
        await database.close()
    if segment:
        log.path(segment).touch(mode=0o600)


async def _schema(url: str) -> str | None:
    database = Database(url)
    try:
        return await schema_of(database)
    finally:
        await database.close()


def _make(folder: Path, otherwise: str) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise NotEmpty(f"{folder} is not empty: {otherwise}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _copy(source: Path, target: Path) -> None:
    """Files that vanish meanwhile were settled, or deleted by their owner."""
    if source.is_file():
        shutil.copy2(source, target)
    elif source.is_dir():
        target.mkdir(mode=0o700, exist_ok=True)
        for each in sorted(source.iterdir()):
            if each.name in LEFT_OUT or each.suffix in UNFINISHED:
                continue
            try:
                _copy(each, target / each.name)
            except FileNotFoundError:
                continue
