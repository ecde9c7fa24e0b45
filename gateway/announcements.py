"""News of changes: this gateway looks before a change is answered, others once they hear of it."""

from collections.abc import Coroutine
from typing import Any

from redis.asyncio import Redis

from gateway import redis
from gateway.config import Settings
from gateway.snapshot import LiveSnapshot


class Announcements:
    """Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = url = settings.redis_url
        self._others: Redis | None = None  # without Redis they look by themselves
        if url is not None:
            self._others = redis.connect(url, timeout_s=settings.limit_deadline_s)
        self.snapshot: LiveSnapshot | None = None  # until there is one to bring up to date

    async def published(self) -> None:
        """Whoever is told that a change is made may rely on it here with the next request."""
        if self.snapshot is not None:
            await self.snapshot.look()
        if self._others is not None:
            await redis.announce(self._others)

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        if self._url is None or self.snapshot is None:
            return {}
        client = redis.connect(self._url, timeout_s=redis.SILENCE_S * 2)
        return {"announcements": redis.listen(client, self.snapshot.hint)}
