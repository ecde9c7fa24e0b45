"""What a project weighs on a busy engine: as itself, its organisation or its plan says."""

from collections.abc import Iterable

from gateway.identity.models import ApiKey, Organisation
from gateway.limits.models import Plan


class Weights:
    def __init__(self, organisations: Iterable[Organisation], plans: Iterable[Plan]) -> None:
        of_plan = {plan.id: plan.weight for plan in plans}
        self._of = {one.id: one.weight or of_plan.get(one.plan_id or "") for one in organisations}

    def of(self, key: ApiKey) -> int:
        own = key.project.weight if key.project else None
        return own or self._of.get(key.organisation_id) or 1
