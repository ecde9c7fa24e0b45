"""What a file of tenants says, checked as far as it can be without the database.

Where the file says nothing of a thing (no ``rates``, no ``budgets``, no ``plan``), that stays as
it is; where it says something, that is all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.declared.source import Spot
from gateway.identity.models import Role
from gateway.limits.models import Exhaust
from gateway.limits.rules import Rates

NANO_PER_DOLLAR = 10**9
BILLING = ("postpaid", "prepaid")
LIMITS = ("rates", "budgets", "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredBudget:
    period: str
    nano: int
    time_zone: str = "UTC"
    on_exhaust: str = Exhaust.CUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of a subject; ``models``: of the same for one model. None: nothing is said."""

    rates: Rates | None = None
    budgets: tuple[DeclaredBudget, ...] | None = None
    models: "Mapping[str, Limits]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKey:
    limits: Limits
    expires_at: datetime | None = None
    endpoints: tuple[str, ...] | None = None  # None: all
    models: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPerson:
    name: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredProject:
    limits: Limits
    keys: Mapping[str, DeclaredKey]
    people: Mapping[str, Role]  # by address
    customers: Mapping[str, Limits]
    tags: Mapping[str, Limits]
    listed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredOrganisation:
    says_plan: bool
    plan: str | None
    billing: str | None
    limits: Limits
    people: Mapping[str, DeclaredPerson]
    admin_keys: Mapping[str, Role]
    projects: Mapping[str, DeclaredProject]
    listed: frozenset[str]  # which of its fields the file has


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPrice:
    spot: Spot
    model: str | None  # or
    adapter: str | None
    tier: str
    prices: tuple[str, str, str]
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    plans: Mapping[str, Limits]
    prices: tuple[DeclaredPrice, ...]
    organisations: Mapping[str, DeclaredOrganisation]
