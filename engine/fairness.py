"""Who deserves the next place: one counter of service per tenant, as in virtual token counters.

Every token a tenant is served, and every adapter page loaded for it, raises its counter, divided by
its weight; the least counter is served first. A tenant that comes back is lifted to the least
counter of those present, so idling saves nothing up (VTC, Sheng et al. 2024). Counters nearer than
a *quantum* count as equal, and among equals the scheduler may prefer what is cheap to serve:
resident adapters and long prefixes (deficit longest prefix match, Cao et al. 2025).

Between two tenants that both wait all along, over any time, service per weight differs by at most
``gap_bound``: the one behind is served until the other's counter is passed by a quantum, plus what
was admitted before and is still being served. Belongs to the engine loop's thread.
"""

from collections import Counter

INPUT_COST = 1  # per prompt token computed; cached ones cost nothing
OUTPUT_COST = 2  # per token generated
LOAD_COST = 8  # per page of an adapter that was loaded for a request
REMEMBERED = 10_000  # absent tenants whose service is remembered


def gap_bound(*, quantum: float, longest_prompt: int, pool_tokens: int) -> float:
    """Largest difference in service per weight of two tenants, in cost.

    The counters of waiting tenants stay within a quantum and the cost of what one admission brings:
    its prompt, and all the tokens that the pool can hold while it is generating.
    """
    admitted = INPUT_COST * longest_prompt + OUTPUT_COST * pool_tokens
    return 2 * (quantum + admitted)


class Fairness:
    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self._served: dict[str, float] = {}  # counters
        self._present: Counter[str] = Counter()  # open sequences of each tenant
        self._weights: dict[str, float] = {}
        self._floor = 0.0  # where a tenant nobody remembers begins

    def __getitem__(self, tenant: str) -> float:
        return self._served[tenant]

    @property
    def tenants(self) -> int:
        """How many are present."""
        return len(self._present)

    def enter(self, tenant: str, weight: float = 1.0) -> None:
        """One more open sequence; the latest weight counts."""
        self._weights[tenant] = weight
        if not self._present[tenant]:
            self._lift(tenant)
        self._present[tenant] += 1

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
            del self._served[min(absent, key=self._served.__getitem__)]

    def charge(self, tenant: str, cost: float) -> None:
        self._served[tenant] += cost / self._weights[tenant]

    def least_deserving(self, tenants: set[str]) -> set[str]:
        """Those of them within a quantum of the most served."""
        most = max(self._served[tenant] for tenant in tenants)
        return {tenant for tenant in tenants if self._served[tenant] >= most - self.quantum}

    def _lift(self, tenant: str) -> None:
        present = [self._served[other] for other, n in self._present.items() if n]
        floor = min(present, default=self._floor)
        self._served[tenant] = max(self._served.get(tenant, floor), floor)
