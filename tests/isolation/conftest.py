"""The stores that gateways share."""

from tests.services import postgres, redis_url

__all__ = ["postgres", "redis_url"]
