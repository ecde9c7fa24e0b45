"""What people call what the ledger knows by id."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.dashboard.visit import Visit
from gateway.identity.repository import IdentityRepository

NOBODY = "(none)"


@dataclass(frozen=True, slots=True)
class Names:
    """Of projects, or of organisations where an operator looks at all of them."""

    visit: Visit
    owners: Mapping[str, str]

    @classmethod
    async def of(cls, visit: Visit) -> "Names":
        if visit.organisation:
            rows = await visit.rows.projects(archived=True)
            return cls(
                visit,
                {row.id: row.name + (" (archived)" if row.archived_at else "") for row in rows},
            )
        found = await IdentityRepository(visit.session).organisations()
        return cls(visit, {row.id: row.name for row in found})

    def of_owner(self, owner: str) -> str:
        return self.owners.get(owner, owner or NOBODY)

    def href(self, owner: str) -> str:
        """From all organisations to one of them."""
        return "" if self.visit.organisation else self.visit.here(org=owner)
