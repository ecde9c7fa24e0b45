"""Whose upload is worked on: one at a time, and nobody's second before everybody else's first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """Whoever completes many uploads waits with the rest behind the first of everybody else.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._next = asyncio.Lock()  # first come, first served
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, project: str) -> AsyncIterator[None]:
        own = self._own.setdefault(project, asyncio.Lock())
        async with own, self._next:
            yield
