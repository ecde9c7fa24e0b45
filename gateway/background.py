"""Tasks that run as long as the gateway does, and steps that are not to be cut in the middle.

If one of the tasks fails, the block around them ends.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """An async context: starts the tasks, and cancels them at its end."""

    def __init__(self, work: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    async def __aenter__(self) -> None:
        self._owner = asyncio.current_task()
        for name, coroutine in self._work.items():
            task = asyncio.create_task(coroutine, name=name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None and self._owner is not None:
            self._owner.uncancel()
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._failure is not None or self._owner is None:
            return
        self._failure = task.exception() or RuntimeError(f"{task.get_name()} ended by itself")
        self._owner.cancel()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for it even if we are cancelled meanwhile; then be cancelled."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
