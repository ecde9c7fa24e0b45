"""Every live key in memory, and who holds it. Reads no database."""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from gateway.errors import Unauthenticated
from gateway.identity import keys
from gateway.identity.pepper import Peppers
from gateway.identity.principal import Principal

MOST_PROVED = 100_000  # keys that are known by sight
NO_HASH = "0" * 64  # compared when there is nothing to compare, so that all refusals cost the same


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key that is neither revoked nor of an archived project."""

    principal: Principal
    hash: str = field(repr=False)
    pepper_version: int
    expires_at: float | None  # unix seconds


class KeyDirectory:
    """Immutable; a change makes another one."""

    def __init__(self, entries: Iterable[KeyEntry], peppers: Peppers) -> None:
        self._entries: Mapping[str, KeyEntry] = {e.principal.key: e for e in entries}
        self._peppers = peppers
        self._salt = secrets.token_bytes(64)
        self._proved: dict[bytes, KeyEntry] = {}
        holders = [entry.principal for entry in self._entries.values()]
        self._projects = {p.tenant: (p.project, p.project_name) for p in holders if p.tenant}

    def authenticate(self, text: str, now: float) -> Principal:
        """Raises Unauthenticated, the same for unknown, malformed, expired and revoked.

        A key that was proved once is known again by a hash that nobody outside can compute, a
        tenth of the work; its text is kept nowhere.
        """
        digest = blake2b(text.encode("utf-8", "replace"), key=self._salt).digest()
        if (proved := self._proved.get(digest)) is not None:
            if proved.expires_at is not None and proved.expires_at <= now:
                raise Unauthenticated
            return proved.principal
        entry = self._prove(text, now)
        if len(self._proved) < MOST_PROVED:
            self._proved[digest] = entry
        return entry.principal

    def _prove(self, text: str, now: float) -> KeyEntry:
        key = keys.parse(text)
        if key is None:
            raise Unauthenticated
        entry = self._entries.get(key.id)
        pepper = self._peppers.get(entry.pepper_version) if entry else None
        given = key.hash(pepper or self._peppers[self._peppers.current])
        known = entry.hash if entry and pepper else NO_HASH
        if not hmac.compare_digest(given, known) or entry is None:
            raise Unauthenticated
        if entry.expires_at is not None and entry.expires_at <= now:
            raise Unauthenticated
        if entry.principal.admin != key.is_admin:
            raise Unauthenticated
        return entry

    def any_of(self, project_name: str, now: float) -> Principal:
        """The oldest usable key of a project, for the mode that asks for none.

        Raises Unauthenticated.
        """
        for entry in self._entries.values():
            alive = entry.expires_at is None or entry.expires_at > now
            if alive and entry.principal.project_name == project_name:
                return entry.principal
        raise Unauthenticated

    def of_organisation(self, organisation: str) -> list[Principal]:
        """Who holds a key of its projects."""
        everybody = (entry.principal for entry in self._entries.values())
        return [who for who in everybody if who.organisation == organisation and not who.admin]

    def project_of(self, tenant: str) -> tuple[str, str] | None:
        """Id and name of the project that engines see as this tenant, if it has a live key."""
        return self._projects.get(tenant)

    def holder(self, key: str, now: float) -> Principal:
        """Whose a key is, by its id: for work that was begun with it. Raises Unauthenticated."""
        entry = self._entries.get(key)
        if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
            raise Unauthenticated
        return entry.principal

    def __len__(self) -> int:
        return len(self._entries)


def tenant_of(project: str) -> str:
    """The project as engines see it: a fairness key and a cache salt, never a name."""
    return blake2b(project.encode(), digest_size=16).hexdigest()
