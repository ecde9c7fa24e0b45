"""Who is taken in. Whoever could not be served in time is refused at once, with when to come back.

A queue that is full belongs to nobody: a tenant with fewer sequences in it than another takes the
place of that other's newest. Belongs to the engine loop's thread.
"""

from collections.abc import Iterator
from typing import Generic

from engine.admission import Refusal
from engine.book import Book
from engine.config import EngineConfig
from engine.protocol import RefusalCode, Submit
from engine.request import Request
from engine.residency import P
from engine.scheduler import Scheduler

SOONEST_MS, LATEST_MS = 50, 60_000  # in which a client is told to come back


class Door(Generic[P]):
    def __init__(self, config: EngineConfig, scheduler: Scheduler[P], book: Book) -> None:
        self._config, self._scheduler, self._book = config, scheduler, book

    def admit(self, connection: int, submit: Submit) -> None:
        """Raises Refusal; may refuse others who wait in favour of this one."""
        config = self._config
        if len(self._book.of(connection)) >= config.credits:
            detail = f"all {config.credits} requests this engine allows a gateway are open"
            raise self._full(detail)
        self._require_time(submit)
        self._require_room(submit)

    def _require_time(self, submit: Submit) -> None:
        """Its turn comes before its deadline, and as soon as is promised here."""
        limits = [self._config.max_queue_wait_s]
        limits += [None if submit.deadline_ms is None else submit.deadline_ms / 1000]
        longest = min((limit for limit in limits if limit is not None), default=None)
        if longest is None:
            return
        wait = self._scheduler.expected_wait(submit)
        if wait is not None and wait > longest:
            detail = f"its turn would come in about {wait:.1f} s; it has {longest:g} s"
            raise self._full(detail, wait - longest)

    def _require_room(self, submit: Submit) -> None:
        scheduler, config = self._scheduler, self._config
        over = scheduler.running + scheduler.waiting + submit.n - config.room
        if over <= 0:
            return
        detail = (
            f"{scheduler.running} sequences run and {scheduler.waiting} wait; "
            f"this engine takes {config.room} in all"
        )
        leaving: list[Request] = []
        for request in self._dispensable(submit):
            leaving.append(request)
            over -= request.submit.n
            if over <= 0:
                break
        else:
            raise self._full(detail)
        for request in leaving:
            text = f"{detail}, and tenants who ask for less go first"
            self._book.refuse(request, RefusalCode.QUEUE_FULL, text, self._book.retry_ms)

    def _dispensable(self, submit: Submit) -> Iterator[Request]:
        """Requests of the tenant who has most in the queue, newest first, as long as it has more
        than this one's would have."""
        lines = self._scheduler.lines()
        mine = lines.pop(submit.tenant, [])
        if not lines:
            return
        line = max(lines.values(), key=len)
        left = len(line)
        for sequence in sorted(line, key=lambda sequence: sequence.age, reverse=True):
            request = sequence.request
            if sequence.index or request.started or request.submit.priority > submit.priority:
                continue
            left -= request.submit.n
            if left < len(mine) + submit.n:
                return
            yield request

    def _full(self, detail: str, seconds: float = 0.0) -> Refusal:
        retry_ms = max(self._book.retry_ms, SOONEST_MS, round(1000 * seconds))
        return Refusal(RefusalCode.QUEUE_FULL, detail, min(retry_ms, LATEST_MS))
