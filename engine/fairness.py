"""Who deserves the next place: one counter of service per tenant, as in virtual token counters.

Every token a tenant is served, and every adapter page loaded for it, raises its counter, divided by
its weight; the least counter is served first. A tenant of whom nobody waits is lifted, when a
request of it arrives, to the least counter of those who wait, so neither idling nor asking for
little saves anything up (VTC, Sheng et al. 2024). Counters nearer than a *quantum* count as equal,
and among equals the scheduler may prefer what is cheap to serve: resident adapters and long
prefixes (deficit longest prefix match, Cao et al. 2025). Belongs to the engine loop's thread.
"""

from collections import Counter
from collections.abc import Iterable

INPUT_COST = 1  # per prompt token computed; cached ones cost nothing
OUTPUT_COST = 2  # per token generated
LOAD_COST = 8  # per page of an adapter that was loaded for a request
REMEMBERED = 10_000  # absent tenants whose service is remembered


class Fairness:
    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self._served: dict[str, float] = {}  # counters
        self._present: Counter[str] = Counter()  # open sequences of each tenant
        self._waiting: Counter[str] = Counter()  # those of them that wait
        self._last = ""  # the tenant that stopped waiting last
        self._weights: dict[str, float] = {}
        self._floor = 0.0  # where a tenant nobody remembers begins

    def __getitem__(self, tenant: str) -> float:
        return self._served[tenant]

    @property
    def tenants(self) -> int:
        """How many are present."""
        return len(self._present)

    def entry(self, tenant: str) -> float:
        """The counter it has, or would have if a request of it arrived now."""
        own = self._served.get(tenant, 0.0)
        return own if tenant in self._waiting else max(own, self._floor, self._level())

    def enter(self, tenant: str, weight: float = 1.0) -> None:
        """One more open sequence; the latest weight counts."""
        self._weights[tenant] = weight
        self._served[tenant] = self.entry(tenant)
        self._present[tenant] += 1

    def wait(self, tenant: str) -> None:
        """One of its open sequences waits: it is new, or had to yield, which lifts nothing."""
        self._waiting[tenant] += 1

    def go(self, tenant: str) -> None:
        """One that waited no longer does."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last = tenant

    def leave(self, tenant: str) -> None:
        self._present[tenant] -= 1
        if self._present[tenant]:
            return
        del self._present[tenant], self._weights[tenant]
        present = [self._served[other] for other in self._present]
        self._floor = max(self._floor, min(present, default=self._served[tenant]))
        if self._served[tenant] <= self._floor:
            del self._served[tenant]
        elif len(self._served) - len(self._present) > REMEMBERED:
            absent = self._served.keys() - self._present.keys()
            for other in sorted(absent, key=self._served.__getitem__)[: REMEMBERED // 10]:
                del self._served[other]

    def running(self, tenant: str) -> int:
        """Its sequences that do not wait."""
        return self._present[tenant] - self._waiting[tenant]

    def weight(self, tenant: str) -> float:
        return self._weights[tenant]

    @property
    def weights(self) -> float:
        """Of all who are present, together."""
        return sum(self._weights.values())

    def rank(self, tenant: str) -> tuple[float, float]:
        """The least goes first: who was served least, then who runs least for its weight."""
        return self._served[tenant], self.running(tenant) / self._weights[tenant]

    def gap_bound(self, max_num_seqs: int, *, longest_prompt: int, longest_answer: int) -> float:
        """By how much the service of two tenants of weight 1 or more, of whom both always wait, can
        differ: the most that may be charged to one after its turn (a prompt when it is admitted,
        then all that those who run still generate), twice, and what counts as equal (VTC,
        theorem 4.4)."""
        running = OUTPUT_COST * max_num_seqs * longest_answer
        return 2 * max(INPUT_COST * longest_prompt, running) + self.quantum

    def least(self, tenants: Iterable[str] = ()) -> float:
        """The least counter of these and of all who wait."""
        return min((self._served[tenant] for tenant in {*tenants, *self._waiting}), default=0.0)

    def charge(self, tenant: str, cost: float) -> None:
        self._served[tenant] += cost / self._weights[tenant]

    def least_deserving(self, tenants: set[str]) -> set[str]:
        """Those of them within a quantum of the most served."""
        most = max(self._served[tenant] for tenant in tenants)
        return {tenant for tenant in tenants if self._served[tenant] >= most - self.quantum}

    def _level(self) -> float:
        """The least counter of those who wait; if nobody does, that of the last who did."""
        waiting = [self._served[other] for other in self._waiting]
        return min(waiting, default=self._served.get(self._last, 0.0))
