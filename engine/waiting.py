"""Who is next: higher priorities first, then one tenant after another, each in order of arrival.

A tenant's flood therefore delays its own requests and nobody else's. This object is the whole
order policy; the scheduler only walks the candidates it names.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from operator import attrgetter

from engine.sequence import Sequence

_order = attrgetter("order")


class WaitingQueue:
    def __init__(self) -> None:
        # priority → tenant → its sequences in order. The tenant served last is last.
        self._levels: dict[int, dict[str, list[Sequence]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        for priority in sorted(self._levels, reverse=True):
            rounds = zip_longest(*self._levels[priority].values())
            yield from (sequence for sequence in chain.from_iterable(rounds) if sequence)

    def add(self, sequence: Sequence) -> None:
        """Also for one that comes back: it takes its old place within its tenant."""
        submit = sequence.request.submit
        tenants = self._levels.setdefault(submit.priority, {})
        insort(tenants.setdefault(submit.tenant, []), sequence, key=_order)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        submit = sequence.request.submit
        tenants = self._levels[submit.priority]
        line = tenants[submit.tenant]
        del line[bisect_left(line, sequence.order, key=_order)]
        self._size -= 1
        if not line:
            del tenants[submit.tenant]
        if not tenants:
            del self._levels[submit.priority]

    def serve(self, sequence: Sequence) -> None:
        """Remove it, and let every other tenant go before its next."""
        self.remove(sequence)
        submit = sequence.request.submit
        tenants = self._levels.get(submit.priority, {})
        if (line := tenants.pop(submit.tenant, None)) is not None:
            tenants[submit.tenant] = line

    def candidates(self, most: int) -> list[Sequence]:
        """The first ``most`` in line."""
        return list(islice(self, most))
