"""What every public model name means, in memory. Reads no database.

Within a project: the base's served name (reserved: no adapter can take it), ``alias`` for the
newest version, and ``alias@version``. A foreign name and a missing one are the same refusal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.protocol import AdapterRef
from gateway.catalog.target import Target
from gateway.errors import ModelNotFound

BASE_OWNER = "loratorio"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterEntry:
    """One ready version."""

    id: str
    project: str
    project_name: str
    name: str
    version: int
    adapter: AdapterRef
    created: int  # unix seconds


class Catalogue:
    """Immutable; a change makes another one."""

    def __init__(self, base_model: str, created: int, entries: Iterable[AdapterEntry]) -> None:
        self.base = Target(
            public_name=base_model,
            base_model=base_model,
            created=created,
            name=base_model,
            owner=BASE_OWNER,
        )
        self._targets: dict[str, dict[str, Target]] = {}  # project -> public name -> target
        self._listed: dict[str, list[Target]] = {}  # project -> newest versions, by name
        newest: dict[tuple[str, str], AdapterEntry] = {}
        for entry in sorted(entries, key=lambda entry: entry.version):
            self._name(entry, f"{entry.name}@{entry.version}")
            newest[entry.project, entry.name] = entry
        for _, entry in sorted(newest.items()):
            if entry.name != base_model:
                target = self._name(entry, entry.name)
                self._listed.setdefault(entry.project, []).append(target)

    def resolve(self, project: str, name: str) -> Target:
        """Raises ModelNotFound."""
        if name == self.base.public_name:
            return self.base
        target = self._mine(project).get(name)
        if target is None:
            raise ModelNotFound(name)
        return target

    def models(self, project: str) -> list[Target]:
        """The base, then the project's adapters by name: what ``/v1/models`` lists."""
        return [self.base, *self._listed.get(project, ())]

    def _mine(self, project: str) -> Mapping[str, Target]:
        return self._targets.get(project, {})

    def _name(self, entry: AdapterEntry, public_name: str) -> Target:
        target = Target(
            public_name=public_name,
            base_model=self.base.public_name,
            adapter=entry.adapter,
            adapter_id=entry.id,
            created=entry.created,
            name=entry.name,
            owner=entry.project_name,
        )
        self._targets.setdefault(entry.project, {})[public_name] = target
        return target
