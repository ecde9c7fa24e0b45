"""What every public model name means, in memory. Reads no database.

Within a project: the bases' served names (reserved: no adapter can take one), ``name`` for the
newest version, ``name@version``, and aliases, which come before names. An adapter brings its base
along, so an alias that moves to a version for another base moves to that base. Then what other
projects granted, where no name of its own is in the way. A foreign name and a missing one are the
same refusal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from engine.protocol import AdapterRef
from gateway.catalog.bases import Bases
from gateway.catalog.target import Subject, Target, nobody
from gateway.errors import BaseNotServed, ModelNotFound

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
    pinned: bool = False
    base: str = ""  # fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasEntry:
    project: str
    name: str
    adapter_id: str
    canary_id: str | None = None
    canary_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantEntry:
    owner: str  # project
    name: str  # of its adapter
    grantee: str  # project


@dataclass(frozen=True, slots=True)
class _Meaning:
    target: Target
    canary: Target | None = None
    percent: int = 0

    def for_subject(self, subject: Subject) -> Target:
        """Raises BaseNotServed."""
        chosen = self.target
        if self.canary is not None and _place(chosen.public_name, subject()) < self.percent:
            chosen = self.canary
        if not chosen.base_model:
            raise BaseNotServed(chosen.public_name)
        return chosen


class Catalogue:
    """Immutable; a change makes another one."""

    def __init__(
        self,
        bases: Bases,
        created: int,
        entries: Iterable[AdapterEntry],
        aliases: Iterable[AliasEntry] = (),
        grants: Iterable[GrantEntry] = (),
    ) -> None:
        self._bases = bases
        self.bases = {
            name: Target(
                public_name=name, base_model=name, created=created, name=name, owner=BASE_OWNER
            )
            for name in bases.names
        }
        self._meanings: dict[str, dict[str, _Meaning]] = {}  # project -> public name
        self._listed: dict[str, list[Target]] = {}  # project -> what a client is shown, by name
        ordered = sorted(entries, key=lambda entry: entry.version)
        self.pinned = frozenset(
            (base, entry.adapter)
            for entry in ordered
            if entry.pinned and (base := bases.name_of(entry.base)) is not None
        )
        self.digests = frozenset(entry.adapter.digest for entry in ordered)
        self._name_versions(ordered)
        self._name_aliases(aliases, {entry.id: entry for entry in ordered})
        self._share(grants)
        self._names: dict[str, list[str]] = {}  # digest -> public names of it, in any project
        for project, meanings in self._meanings.items():
            for name, meaning in meanings.items():
                if (adapter := meaning.target.adapter) is not None:
                    self._names.setdefault(adapter.digest, []).append(name)
            shown = sorted(name for name in meanings if "@" not in name and name not in self.bases)
            targets = [meanings[name].target for name in shown]
            self._listed[project] = [target for target in targets if target.base_model]

    def resolve(self, project: str, name: str, subject: Subject = nobody) -> Target:
        """``subject``: who asks, for a canary's share. Raises ModelNotFound, BaseNotServed."""
        if (base := self.bases.get(name)) is not None:
            return base
        meaning = self._meanings.get(project, {}).get(name)
        if meaning is None:
            raise ModelNotFound(name)
        return meaning.for_subject(subject)

    def names_of(self, digest: str) -> list[str]:
        """What clients of any project call an adapter, shortest first."""
        return sorted(set(self._names.get(digest, ())), key=lambda name: (len(name), name))

    def models(self, project: str) -> list[Target]:
        """The bases, then the project's adapters by name: what ``/v1/models`` lists."""
        return [*self.bases.values(), *self._listed.get(project, ())]

    def _name_versions(self, ordered: Iterable[AdapterEntry]) -> None:
        for entry in ordered:
            mine = self._meanings.setdefault(entry.project, {})
            for name in (f"{entry.name}@{entry.version}", entry.name):  # the last is the newest
                mine[name] = _Meaning(self._target(entry, name))

    def _name_aliases(
        self, aliases: Iterable[AliasEntry], by_id: Mapping[str, AdapterEntry]
    ) -> None:
        for alias in aliases:
            entry, canary = by_id.get(alias.adapter_id), by_id.get(alias.canary_id or "")
            if entry is None:
                continue
            self._meanings.setdefault(alias.project, {})[alias.name] = _Meaning(
                self._target(entry, alias.name),
                self._target(canary, alias.name) if canary else None,
                alias.canary_percent,
            )

    def _share(self, grants: Iterable[GrantEntry]) -> None:
        own = {project: frozenset(names) for project, names in self._meanings.items()}
        for grant in grants:
            theirs, mine = own.get(grant.owner, frozenset()), own.get(grant.grantee, frozenset())
            for name in theirs - mine:
                if name.partition("@")[0] == grant.name:
                    meaning = self._meanings[grant.owner][name]
                    self._meanings.setdefault(grant.grantee, {}).setdefault(name, meaning)

    def _target(self, entry: AdapterEntry, public_name: str) -> Target:
        return Target(
            public_name=public_name,
            base_model=self._bases.name_of(entry.base) or "",
            adapter=entry.adapter,
            adapter_id=entry.id,
            created=entry.created,
            name=entry.name,
            owner=entry.project_name,
        )


def _place(alias: str, subject: str) -> int:
    """0 to 99: where somebody stands in a canary's queue, always the same."""
    digest = blake2b(f"{alias}/{subject}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest) % 100
