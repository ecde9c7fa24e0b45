"""A clock that moves when a test says so, and a wait for what another task or thread does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class FakeClock:
    """Seconds on a monotonic axis; call it to read it."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once ``condition`` holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
