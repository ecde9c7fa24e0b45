"""The stores that tests of bills run against."""

from tests.services import (
    backend,
    database,
    database_url,
    migrated_sqlite,
    migrated_url,
    postgres,
)

__all__ = ["backend", "database", "database_url", "migrated_sqlite", "migrated_url", "postgres"]
