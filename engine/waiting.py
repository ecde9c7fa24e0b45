"""Who is next: higher priorities first, then the tenant served least, each in order of due time.

Within its tenant's line a sequence's *turn* is the tenant's counter plus the cost queued before
it, so lines merge as they would be served, and a flood delays its own tenant only. Turns nearer
than a quantum to the first count as equal. The head of a line fixes what is equal to it, so no
sequence is ever overtaken by more than a quantum of its own tenant. Belongs to the engine loop's
thread.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from engine.fairness import INPUT_COST, Fairness
from engine.protocol import Submit
from engine.sequence import Sequence

Turn = tuple[float, float, tuple[int, float, int, int], Sequence]

_order = attrgetter("order")


class WaitingQueue:
    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._levels: dict[int, dict[str, list[Sequence]]] = {}  # priority → tenant → its line
        self._queued: defaultdict[str, float] = defaultdict(float)  # cost ever queued, in the line
        self._size = 0
        self.tokens = 0  # prompt tokens of those who wait

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        for priority in sorted(self._levels, reverse=True):
            yield from (turn[-1] for turn in self._turns(priority))

    def add(self, sequence: Sequence) -> None:
        """Also for one that comes back: it takes its old place within its tenant."""
        submit = sequence.request.submit
        if sequence.stamp is None:
            sequence.stamp = self._queued[submit.tenant]
            self._queued[submit.tenant] += INPUT_COST * len(submit.tokens) / submit.weight
        tenants = self._levels.setdefault(submit.priority, {})
        insort(tenants.setdefault(submit.tenant, []), sequence, key=_order)
        self._fairness.wait(submit.tenant)
        self._size += 1
        self.tokens += len(submit.tokens)

    def remove(self, sequence: Sequence) -> None:
        submit = sequence.request.submit
        tenants = self._levels[submit.priority]
        line = tenants[submit.tenant]
        del line[bisect_left(line, sequence.order, key=_order)]
        self._fairness.go(submit.tenant)
        self._size -= 1
        self.tokens -= len(submit.tokens)
        if line:
            return
        del tenants[submit.tenant]
        if not tenants:
            del self._levels[submit.priority]
        if not any(submit.tenant in others for others in self._levels.values()):
            self._queued.pop(submit.tenant, None)

    def lines(self) -> dict[str, list[Sequence]]:
        """Each tenant's, over all priorities."""
        found: defaultdict[str, list[Sequence]] = defaultdict(list)
        for tenants in self._levels.values():
            for tenant, line in tenants.items():
                found[tenant] += line
        return dict(found)

    def ahead(self, submit: Submit) -> int:
        """How many would go before a new request."""
        turn = self._fairness.entry(submit.tenant)
        turn += self._queued.get(submit.tenant, 0.0) - self._first(submit)
        ahead = 0
        for priority, tenants in self._levels.items():
            for tenant, line in tenants.items():
                if priority > submit.priority or tenant == submit.tenant:
                    ahead += len(line) if priority >= submit.priority else 0
                elif priority == submit.priority:
                    ahead += sum(other[0] <= turn for other in self._line(tenant, line))
        return ahead

    def _first(self, submit: Submit) -> float:
        """The stamp of the first in its tenant's line."""
        line = self._levels.get(submit.priority, {}).get(submit.tenant)
        if line:
            return line[0].stamp or 0.0
        return self._queued.get(submit.tenant, 0.0)

    def candidates(self, most: int) -> list[Sequence]:
        """The first ``most`` in line."""
        return list(islice(self, most))

    def equals(self, most: int) -> list[Sequence]:
        """The first in line and those whose turn is equal to its own, at most so many."""
        if not self._levels:
            return []
        found: list[Sequence] = []
        limit = float("inf")
        for turn, _, _, sequence in islice(self._turns(max(self._levels)), most):
            limit = min(limit, turn + self._fairness.quantum)
            if turn > limit:
                break
            found.append(sequence)
        return found

    def _turns(self, priority: int) -> Iterator[Turn]:
        return merge(*(self._line(*pair) for pair in self._levels[priority].items()))

    def _line(self, tenant: str, line: list[Sequence]) -> Iterator[Turn]:
        served, running = self._fairness.rank(tenant)
        first = line[0].stamp or 0.0
        for sequence in line:
            after = max(0.0, (sequence.stamp or 0.0) - first)
            yield served + after, running, sequence.order, sequence
