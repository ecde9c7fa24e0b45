"""Brings a database to a revision, in one transaction; several starting at once take turns."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.audit import models as audit
from gateway.batches import models as batches
from gateway.billing import models as billing
from gateway.catalog import models as catalog
from gateway.db import Base, Database
from gateway.files import models as files
from gateway.identity import models as identity
from gateway.limits import models as limits
from gateway.refusals import models as refusals
from gateway.responses import models as responses
from gateway.texts import models as texts
from gateway.usage import models as usage
from migrations.isolation import isolate

# Imported, so that they are in METADATA.
TABLES = (
    audit.AuditEvent,
    batches.Batch,
    billing.SinkDelivery,
    catalog.Adapter,
    files.StoredFile,
    identity.ApiKey,
    limits.Quota,
    refusals.Refusal,
    responses.StoredResponse,
    texts.RequestText,
    usage.UsageEvent,
)
METADATA = Base.metadata
PARTITION = re.compile(r"usage_event_\d{8}")
log = logging.getLogger(__name__)
LOCK = 0x10_7A  # Postgres advisory lock: one migration at a time


async def upgrade(database: Database, revision: str = "head") -> None:
    """Raises DatabaseUnavailable when it cannot be reached. At head, tenants are isolated too.

    A database at a revision of a later release is left as it is: during a rolling upgrade a program
    of the release before may start once more, and a release only adds to the schema.
    """

    def act(config: Config) -> None:
        connection = config.attributes["connection"]
        if revision == "head" and not _at(connection) <= set(revisions()):
            log.warning("the database is a later release's (%s)", ", ".join(_at(connection)))
            return
        command.upgrade(config, revision)
        if revision == "head":
            isolate(connection, METADATA)

    await _run(database, act)


async def downgrade(database: Database, revision: str) -> None:
    await _run(database, lambda config: command.downgrade(config, revision))


async def differences(database: Database) -> list[object]:
    """What the models have and the database has not, or otherwise; empty at head."""

    def compare(connection: Connection) -> list[object]:
        options = {"compare_type": True, "include_name": _is_ours}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, METADATA))

    async with database.transaction() as connection:
        return await connection.run_sync(compare)


def _at(connection: Connection) -> set[str]:
    """Its revision; nothing of a database that is new."""
    return set(MigrationContext.configure(connection).get_current_heads())


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Partitions are made as days come; the models know their parent."""
    return kind != "table" or not PARTITION.fullmatch(name or "")


def revisions() -> list[str]:
    """Oldest first."""
    walk = ScriptDirectory.from_config(_config()).walk_revisions()
    return [script.revision for script in walk][::-1]


async def _run(database: Database, act: Callable[[Config], None]) -> None:
    def locked(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        act(_config(connection))

    async with database.transaction() as connection:
        await connection.run_sync(locked)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
