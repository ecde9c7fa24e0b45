"""What people call what the ledger knows by id."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.dashboard.name_repository import NameRepository
from gateway.dashboard.visit import Visit

NOBODY = "(none)"
BASE = "(base model)"


@dataclass(frozen=True, slots=True)
class Names:
    """``owners`` are projects, or organisations where an operator looks at all of them."""

    visit: Visit
    owners: Mapping[str, str]
    projects: Mapping[str, str]

    @classmethod
    async def of(cls, visit: Visit) -> "Names":
        rows = NameRepository(visit.session, visit.organisation or None)
        projects = await rows.projects()
        owners = projects if visit.organisation else await rows.organisations()
        return cls(visit, owners, projects)

    @classmethod
    async def among(cls, visit: Visit, ids: Sequence[str]) -> "Names":
        """Of these alone where an operator looks at all there are, which are thousands."""
        if visit.organisation:
            return await cls.of(visit)
        if not ids:
            return cls(visit, {}, {})
        rows = NameRepository(visit.session, None)
        return cls(visit, await rows.organisations(ids), await rows.projects(ids))

    def of_owner(self, owner: str) -> str:
        return self.owners.get(owner) or self.projects.get(owner) or owner or NOBODY

    def href(self, owner: str) -> str:
        """From all organisations to one of them."""
        return "" if self.visit.organisation else self.visit.here(org=owner)

    async def namer(self, kind: str) -> Callable[[str], str]:
        """Of what explore calls ``kind``."""
        if kind in ("project", "organisation"):
            return self.of_owner
        rows = NameRepository(self.visit.session, self.visit.organisation or None)
        if kind == "key":
            keys = await rows.keys()
            return lambda key: keys.get(key) or key or NOBODY
        if kind == "adapter":
            adapters = await rows.adapters()
            return lambda adapter: adapters.get(adapter) or adapter or BASE
        return lambda text: text or NOBODY
