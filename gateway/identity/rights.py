"""Roles and what they may do. A person has a role in the organisation, and may have another in a
project, which adds to it there. An admin key acts with its person's roles, or with its own.
"""

from collections.abc import Mapping
from enum import StrEnum

from gateway.errors import PermissionDenied
from gateway.identity.models import Role
from gateway.identity.principal import Principal


class Right(StrEnum):
    READ = "read"  # projects, limits, alerts, people, adapters; usage and costs
    PROJECTS = "projects.change"
    KEYS_READ = "keys.read"  # redacted, as always
    KEYS = "keys.change"  # of projects, and their service accounts
    ADAPTERS = "adapters.change"
    RATES = "rate_limits.change"
    SPENDING = "spending.change"  # limits of money, and alerts
    PEOPLE = "people.change"
    ADMIN_KEYS = "admin_keys"
    AUDIT = "audit.read"
    TEXTS = "texts.read"  # of requests, where a project wants them kept


EVERYTHING = frozenset(Right)
RIGHTS: Mapping[Role, frozenset[Right]] = {
    Role.OWNER: EVERYTHING,
    Role.ADMIN: EVERYTHING,  # but makes no owners: see ``require_grant``
    Role.BILLING: frozenset({Right.READ, Right.SPENDING}),
    Role.DEVELOPER: frozenset(
        {Right.READ, Right.KEYS_READ, Right.KEYS, Right.ADAPTERS, Right.TEXTS}
    ),
    Role.VIEWER: frozenset({Right.READ}),
}


def roles_of(who: Principal, project: str | None) -> set[Role]:
    """In the organisation, or in a project of it. None for keys that administer nothing."""
    roles = {Role(who.role)} if who.role is not None else set()
    return roles | {Role(role) for name, role in who.project_roles if name == project}


def require(who: Principal, right: Right, project: str | None = None) -> None:
    """Raises PermissionDenied, whether there is such a project or not."""
    if not any(right in RIGHTS[role] for role in roles_of(who, project)):
        raise PermissionDenied(f"This needs the right {right}, which your role has not.")


def require_grant(who: Principal, role: Role, project: str | None = None) -> None:
    """Owners alone make, change and end owners. Raises PermissionDenied."""
    if role is Role.OWNER and Role.OWNER not in roles_of(who, project):
        raise PermissionDenied("Only owners make, change or remove owners.")
