"""The stores that are taken away under load."""

from tests.services import postgres, redis_url

__all__ = ["postgres", "redis_url"]
