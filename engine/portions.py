"""How the prompt tokens of a pass are divided: how many there may be, and whose they are.

Where several tenants share an engine passes are kept short, and what is withheld so goes to modest
ones alone: those that neither hold more pages than an even share nor were served more than others.
Belongs to the engine loop's thread.
"""

from collections.abc import Callable, Iterable
from typing import Generic

from engine.fairness import Fairness
from engine.pages import Kind
from engine.planned import Plan
from engine.residency import P
from engine.seating import Seating
from engine.sequence import Sequence
from engine.tempo import Company, Tempo

COMPANY_S = 60.0  # how long after the last of several tenants passes are kept short

Claim = tuple[int, bool, float, float, tuple[int, float, int, int]]  # the least goes first


class Portions(Generic[P]):
    def __init__(
        self,
        fairness: Fairness,
        seating: Seating[P],
        tempo: Tempo,
        *,
        most: int,
        clock: Callable[[], float],
    ) -> None:
        """``most``: tokens of a pass."""
        self._fairness, self._seating, self._tempo = fairness, seating, tempo
        self._most, self._clock = most, clock
        self._shared_at = float("-inf")  # when several tenants were here last, seconds
        self._even = 0.0  # pages in use, for a weight of one
        self._least = 0.0  # service of those who want some of this pass

    def weigh(self, prompts: Iterable[Sequence]) -> None:
        """Those that are to have some of this pass: what is even and modest among them."""
        held = self._seating.pool.holdings(Kind.KV)
        self._even = held / max(self._fairness.weights, 1e-9)
        self._least = self._fairness.least({s.request.submit.tenant for s in prompts})

    def limit(self, plan: Plan) -> None:
        """Its decodes are planned: how many tokens of prompts it may still have."""
        most = self._most - plan.decodes - plan.drafts
        company = Company.SEVERAL if self._shared else Company.NONE
        if self._tempo.looks(plan.decodes, company):
            return
        plan.budget = self._tempo.prompt_tokens(decodes=plan.decodes, most=most)
        if company is Company.SEVERAL:
            plan.withheld = self._withheld(plan, most, company)
            plan.reserved = self._withheld(plan, most, Company.WAITING)
            plan.extra = min(self._tempo.extra(), most - plan.budget)

    def _withheld(self, plan: Plan, most: int, company: Company) -> int:
        fitting = self._tempo.prompt_tokens(decodes=plan.decodes, most=most, company=company)
        return max(0, plan.budget - fitting)

    @property
    def _shared(self) -> bool:
        """Several tenants are here, or were a moment ago and may be back during the pass."""
        now = self._clock()
        if self._fairness.tenants > 1:
            self._shared_at = now
        return now - self._shared_at < COMPANY_S

    def room(self, plan: Plan, sequence: Sequence) -> int:
        """Prompt tokens that it may have of this pass."""
        if not self.modest(sequence):
            return plan.budget - plan.withheld
        rest = sequence.known - sequence.computed
        return rest if plan.budget < rest <= plan.budget + plan.extra else plan.budget

    def modest(self, sequence: Sequence) -> bool:
        """Its tenant holds no more than an even share of the pages in use, and was not served more
        than others: many short requests hold little and take much."""
        tenant = sequence.request.submit.tenant
        if self._fairness[tenant] > self._least + self._fairness.quantum:
            return False
        return self._seating.pool.share_of(tenant) <= self._even * self._fairness.weight(tenant)

    def deserving(self, sequence: Sequence) -> Claim:
        """Modest tenants' go first, as they came, so that a prompt is not dealt out among passes;
        others by what their tenant was served."""
        submit, modest = sequence.request.submit, self.modest(sequence)
        rank = (0.0, 0.0) if modest else self._fairness.rank(submit.tenant)
        return (-submit.priority, not modest, *rank, sequence.order)
