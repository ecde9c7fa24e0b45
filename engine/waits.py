"""How long each waiting sequence waits, and for what.

Most wait for the same thing: room. How long there was none, and for want of what, is added up
once for all of them, pass by pass. Only a sequence with a reason of its own (its adapter, its
tenant's share) is looked at by itself; meanwhile the common reason does not count for it.
Belongs to the engine loop's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.observer import Cause, Observer
from engine.sequence import Sequence

COMMON = (Cause.PAGES, Cause.CAPACITY)


@dataclass(slots=True)
class _Wait:
    seen: tuple[float, ...]  # seconds of each common cause when it was last looked at
    own: Cause | None = None
    since: float = 0.0  # of its own cause
    spent: dict[Cause, float] = field(default_factory=dict)


class Waits:
    def __init__(self, observer: Observer, clock: Callable[[], float]) -> None:
        self._observer, self._clock = observer, clock
        self._waits: dict[int, _Wait] = {}  # by sequence number
        self._common = dict.fromkeys(COMMON, 0.0)  # seconds so far
        self._cause = Cause.CAPACITY  # for which those without a reason of their own wait
        self._now = clock()

    def look(self) -> None:
        """A pass is about to be planned."""
        now = self._clock()
        self._common[self._cause] += now - self._now
        self._now = now

    def begin(self, sequence: Sequence) -> None:
        self.look()
        self._waits[sequence.number] = _Wait(self._seen)

    def hold(self, sequence: Sequence, cause: Cause | None) -> None:
        """From now on it waits for a reason of its own, or with None as the others do."""
        wait = self._waits[sequence.number]
        if wait.own is not cause:
            self._settle(wait)
            wait.own = cause

    def loaded(self, sequence: Sequence) -> None:
        """Its adapter is here."""
        if self._waits[sequence.number].own is Cause.ADAPTER:
            self.hold(sequence, None)

    def room_lacks(self, cause: Cause) -> None:
        """Why nobody more was admitted to this pass: PAGES or CAPACITY."""
        self._cause = cause

    def end(self, sequence: Sequence) -> None:
        """It runs, or is over."""
        self.look()
        wait = self._waits.pop(sequence.number)
        self._settle(wait)
        for cause, seconds in wait.spent.items():
            self._observer.waited(sequence.request.submit.tenant, cause, seconds)

    @property
    def _seen(self) -> tuple[float, ...]:
        return tuple(self._common.values())

    def _settle(self, wait: _Wait) -> None:
        seen = self._seen
        if wait.own is not None:
            _add(wait.spent, wait.own, self._now - wait.since)
        else:
            for cause, before, after in zip(COMMON, wait.seen, seen, strict=True):
                _add(wait.spent, cause, after - before)
        wait.seen, wait.since = seen, self._now


def _add(spent: dict[Cause, float], cause: Cause, seconds: float) -> None:
    if seconds > 0:
        spent[cause] = spent.get(cause, 0.0) + seconds
