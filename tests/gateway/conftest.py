"""The stores that gateway tests run against."""

from tests.services import database, database_url, postgres, redis_url

__all__ = ["database", "database_url", "postgres", "redis_url"]
