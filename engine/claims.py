"""Who has a claim to a place that somebody else's sequence runs in.

Places are shared as evenly as tenants' weights and wishes allow: a tenant may take one from another
as long as that other still runs at least as much for its weight afterwards. So nobody waits for
the end of somebody's long answers, and nobody's place is taken twice in turn. Who was served more
than another who waits, by more than a quantum, has no claim: short answers need a place for a
moment only, and would be served again and again.
Belongs to the engine loop's thread.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as View
from heapq import nlargest

from engine.fairness import Fairness
from engine.sequence import Sequence


class Claims:
    """Of one pass."""

    def __init__(
        self, fairness: Fairness, running: View[Sequence], *, loss: Callable[[Sequence], int]
    ) -> None:
        """``loss``: tokens that are to be computed again once a sequence has yielded."""
        self._loss = loss
        self._fairness = fairness
        self._running = list(running)
        self._fair = fairness.least() + fairness.quantum
        self._top: list[tuple[float, str]] | None = None
        self._runs = Counter(sequence.request.submit.tenant for sequence in running)

    def has(self, sequence: Sequence) -> bool:
        """Some other tenant runs more than this one would with one more."""
        tenant = sequence.request.submit.tenant
        if self._fairness[tenant] > self._fair:
            return False
        return self._most(besides=tenant) >= self._after(tenant)

    def give(self, sequence: Sequence) -> None:
        """It is going to run."""
        self._runs[sequence.request.submit.tenant] += 1
        self._top = None

    def take(self, sequence: Sequence) -> Sequence | None:
        """The one that yields its place to this one, if any does: of the tenant that runs most for
        its weight, and of no higher priority, the one that loses least by it."""
        submit = sequence.request.submit
        others = [other for other in self._runs if self._yields(other, submit.tenant)]
        for other in sorted(others, key=self._load, reverse=True):
            theirs = [s for s in self._running if s.request.submit.tenant == other]
            low = [s for s in theirs if s.request.submit.priority <= submit.priority]
            if low:
                yields = min(reversed(low), key=self._loss)
                self._running.remove(yields)
                self._runs[other] -= 1
                self._top = None
                return yields
        return None

    def _yields(self, other: str, tenant: str) -> bool:
        return other != tenant and self._left(other) >= self._after(tenant)

    def _most(self, *, besides: str) -> float:
        """What the other tenant that runs most would run after it yielded. With hundreds of
        tenants this is asked often, so the two that run most are kept."""
        if self._top is None:
            self._top = nlargest(2, ((self._left(tenant), tenant) for tenant in self._runs))
        return next((left for left, tenant in self._top if tenant != besides), -1.0)

    def _left(self, tenant: str) -> float:
        return (self._runs[tenant] - 1) / self._fairness.weight(tenant)

    def _after(self, tenant: str) -> float:
        return (self._runs[tenant] + 1) / self._fairness.weight(tenant)

    def _load(self, tenant: str) -> float:
        return self._runs[tenant] / self._fairness.weight(tenant)
