"""The stores that gateway tests run against."""

from tests.gateway.administrators import clients
from tests.services import (
    backend,
    database,
    database_url,
    migrated_sqlite,
    migrated_url,
    postgres,
    redis_url,
)

__all__ = [
    "backend",
    "clients",
    "database",
    "database_url",
    "migrated_sqlite",
    "migrated_url",
    "postgres",
    "redis_url",
]
