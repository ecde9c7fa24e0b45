"""A time limit of one length for many short waits: one timer looks after all of them.

``asyncio.timeout`` makes and cancels a timer for each wait, which costs more than most waits here
do. Waits of one length end in the order in which they began, so a queue of them is enough. For
limits of seconds: one wait that lasts keeps those behind it in the queue until it has ended.

A loop that was busy for longer than the limit finds timers and answers due at once. What came in
time is not late: before waits end, the loop goes round, reads what there is and wakes who waits.
"""

import asyncio
from collections import deque
from types import TracebackType

ROUNDS = 3  # read, wake, go on


class Patience:
    """Belongs to one event loop.

    patience = Patience(5.0)
    with patience.wait():  # raises TimeoutError after five seconds
        await answer
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: deque[Wait] = deque()
        self._timer: asyncio.Handle | None = None

    def wait(self) -> "Wait":
        return Wait(self)

    def begin(self, wait: "Wait", loop: asyncio.AbstractEventLoop) -> None:
        """Called by a wait that is entered."""
        waits = self._waits
        while waits and waits[0].task is None:
            waits.popleft()
        wait.until = loop.time() + self.seconds
        waits.append(wait)
        if self._timer is None:
            self._timer = loop.call_at(wait.until, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        waits = self._waits
        while waits and waits[0].task is None:
            waits.popleft()
        if waits and waits[0].until <= (now := loop.time()):
            self._timer = loop.call_soon(self._end, loop, now, ROUNDS)
        else:
            self._timer = loop.call_at(waits[0].until, self._look, loop) if waits else None

    def _end(self, loop: asyncio.AbstractEventLoop, due: float, rounds: int) -> None:
        """What was ``due`` and is not over after so many rounds of the loop."""
        if rounds:
            self._timer = loop.call_soon(self._end, loop, due, rounds - 1)
            return
        waits = self._waits
        while waits and (waits[0].task is None or waits[0].until <= due):
            waits.popleft().expire()
        self._timer = loop.call_at(waits[0].until, self._look, loop) if waits else None


class Wait:
    """Of one task, once."""

    __slots__ = ("_cancelling", "_expired", "_patience", "task", "until")

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.task: asyncio.Task[object] | None = None  # None: it is over
        self.until = 0.0
        self._expired = False

    def __enter__(self) -> None:
        self.task = task = asyncio.current_task()
        assert task is not None
        self._cancelling = task.cancelling()
        self._patience.begin(self, asyncio.get_running_loop())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self.task = self.task, None
        assert task is not None
        if not self._expired:
            return
        ours = task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def expire(self) -> None:
        """Called by the timer."""
        if self.task is not None:
            self._expired = True
            self.task.cancel()
