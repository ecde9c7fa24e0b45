"""Tenants and keys: made, listed, ended. Runs inside the caller's unit of work, never commits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import Conflict, InvalidRequest, ResourceNotFound
from gateway.identity import keys
from gateway.identity.models import (
    ApiKey,
    KeyKind,
    Organisation,
    Project,
    Role,
    ServiceAccount,
)
from gateway.identity.pepper import Peppers
from gateway.identity.repository import IdentityRepository
from gateway.identity.scopes import checked_endpoints, checked_models, checked_networks
from gateway.ids import new_id
from gateway.names import checked_name

MOST_WEIGHT = 1000
DEFAULT_ORGANISATION = "default"
LONGEST_OVERLAP = timedelta(days=90)
SCOPES: Mapping[str, Callable[[tuple[str, ...] | None], tuple[str, ...] | None]] = {
    "endpoints": checked_endpoints,
    "models": checked_models,
    "networks": checked_networks,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTerms:
    """What a new key may do, and for how long."""

    name: str = "default"
    requests_per_minute: int | None = None  # None: unlimited
    tokens_per_minute: int | None = None
    expires_at: datetime | None = None
    endpoints: tuple[str, ...] | None = None  # paths it may be used for; None: all
    models: tuple[str, ...] | None = None  # public names; None: all of its project
    networks: tuple[str, ...] | None = None  # 10.0.0.0/8; None: from anywhere

    def __post_init__(self) -> None:
        for param in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, param)
            if value is not None and not 0 < value < 2**31:
                raise InvalidRequest(f"{param} {value}: from 1 to {2**31 - 1}", param=param)
        for param, checked in SCOPES.items():
            object.__setattr__(self, param, checked(getattr(self, param)))


class IdentityService:
    def __init__(self, session: AsyncSession, now: datetime) -> None:
        self._rows = IdentityRepository(session)
        self._session = session
        self._now = now

    async def create_project(self, name: str, organisation: str = DEFAULT_ORGANISATION) -> Project:
        """Makes the organisation too when it does not exist. Raises Conflict."""
        owner = await self.organisation(organisation, create=True)
        project = await self.create_project_of(owner.id, name)
        project.organisation = owner
        return project

    async def create_project_of(self, organisation: str, name: str) -> Project:
        """Of an organisation that is there, by its id. Raises Conflict."""
        await self._require_free(organisation, name)
        project = Project(
            id=new_id("prj"),
            organisation_id=organisation,
            name=name,
            created_at=self._now,
            archived_at=None,
        )
        self._rows.add(project)
        return project

    async def rename(self, project: Project, name: str) -> None:
        """Raises Conflict."""
        await self._require_free(project.organisation_id, name)
        project.name = name

    async def _require_free(self, organisation: str, name: str) -> None:
        for project in await self._rows.projects(checked_name(name, param="tenant")):
            if project.organisation_id == organisation:
                owner = project.organisation.name
                raise Conflict(f"tenant {owner}/{name} exists", param="tenant")

    def create_account(self, project: Project, name: str) -> ServiceAccount:
        account = ServiceAccount(
            id=new_id("svc"),
            project_id=project.id,
            name=checked_name(name, param="name"),
            role="member",
            created_at=self._now,
            deleted_at=None,
        )
        self._rows.add(account)
        return account

    async def organisation(self, name: str, *, create: bool = False) -> Organisation:
        found = await self._rows.organisation(checked_name(name, param="organisation"))
        if found is not None:
            return found
        if not create:
            raise ResourceNotFound(f"no organisation {name!r}", param="organisation")
        organisation = Organisation(id=new_id("org"), name=name, created_at=self._now)
        self._rows.add(organisation)
        return organisation

    async def project(self, reference: str) -> Project:
        """By name, or by organisation/name where the name alone is not enough."""
        organisation, _, name = reference.rpartition("/")
        found = [
            project
            for project in await self._rows.projects(name)
            if organisation in ("", project.organisation.name)
        ]
        if not found:
            raise ResourceNotFound(f"no tenant {reference!r}", param="tenant")
        if len(found) > 1:
            choices = ", ".join(f"{p.organisation.name}/{p.name}" for p in found)
            raise InvalidRequest(f"tenant {reference!r} is one of {choices}", param="tenant")
        return found[0]

    async def archive(self, reference: str) -> Project:
        """All its keys stop, and its name is free again."""
        project = await self.project(reference)
        project.archived_at = self._now
        for key in await self._rows.keys(project.id):
            key.revoked_at = key.revoked_at or self._now
        return project

    async def set_strict(self, reference: str, strict: bool) -> Project:
        """Whether fields of its requests that nobody knows are refused."""
        project = await self.project(reference)
        project.strict = strict
        return project

    async def set_weight(self, reference: str, weight: int | None) -> Project:
        """Of a busy engine, against other projects'; None: what its organisation says."""
        project = await self.project(reference)
        project.weight = checked_weight(weight)
        return project

    async def set_organisation_weight(self, name: str, weight: int | None) -> Organisation:
        """Of each of its projects that has none of its own; None: what its plan says."""
        organisation = await self.organisation(name)
        organisation.weight = checked_weight(weight)
        return organisation

    def issue(
        self,
        project: Project,
        terms: KeyTerms,
        *,
        peppers: Peppers,
        environment: str = "live",
        account: ServiceAccount | None = None,
    ) -> keys.Key:
        """The returned key is the only copy of its text. Raises InvalidRequest."""
        key = keys.generate(_checked(environment))
        row = self._keep(
            key, terms, peppers, organisation=project.organisation_id, project=project.id
        )
        row.service_account_id = account.id if account else None
        return key

    def issue_admin(
        self,
        organisation: Organisation,
        terms: KeyTerms,
        *,
        peppers: Peppers,
        role: Role | None = None,
    ) -> keys.Key:
        return self.issue_admin_of(organisation.id, terms, peppers=peppers, role=role)

    def issue_admin_of(
        self,
        organisation: str,
        terms: KeyTerms,
        *,
        peppers: Peppers,
        role: Role | None = None,
        user: str | None = None,
    ) -> keys.Key:
        """``role``: of a key that is nobody's (None: owner); one of a person has the person's."""
        assert role is None or user is None
        key = keys.generate(keys.ADMIN)
        row = self._keep(key, terms, peppers, organisation=organisation, project=None)
        row.role, row.user_id = role, user
        return key

    async def rotate(
        self, key_id: str, overlap: timedelta, *, peppers: Peppers, environment: str = "live"
    ) -> keys.Key:
        """Another key in the place of this one, which goes on working for the overlap.

        Both are one to limits and budgets, and may do the same. Raises ResourceNotFound, Conflict,
        InvalidRequest.
        """
        if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
            raise InvalidRequest(f"the overlap is {overlap}: from 0 to 90 days", param="overlap")
        old = await self._rows.key(key_id)
        if old is None:
            raise ResourceNotFound("no key of this id (the id begins with key_)", param="key")
        if old.revoked_at is not None or (old.expires_at and old.expires_at <= self._now):
            raise Conflict("this key has ended already", param="key")
        if await self._rows.successor(key_id) is not None:
            raise Conflict("this key has been rotated already", param="key")
        terms = KeyTerms(
            name=old.name,
            requests_per_minute=old.requests_per_minute,
            tokens_per_minute=old.tokens_per_minute,
            expires_at=old.expires_at,
            **{what: None if getattr(old, what) is None else tuple(getattr(old, what))
               for what in SCOPES},
        )  # fmt: skip
        key = keys.generate(keys.ADMIN if old.kind == KeyKind.ADMIN else _checked(environment))
        row = self._keep(
            key, terms, peppers, organisation=old.organisation_id, project=old.project_id
        )
        row.service_account_id, row.user_id, row.role = (
            old.service_account_id, old.user_id, old.role,
        )  # fmt: skip
        row.replaces = old.id
        end = self._now + overlap
        old.expires_at = min(old.expires_at or end, end)
        return key

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoking twice changes nothing."""
        row = await self._rows.key(key_id)
        if row is None:
            raise ResourceNotFound("no key of this id (the id begins with key_)", param="key")
        row.revoked_at = row.revoked_at or self._now
        return row

    def _keep(
        self,
        key: keys.Key,
        terms: KeyTerms,
        peppers: Peppers,
        *,
        organisation: str,
        project: str | None,
    ) -> ApiKey:
        if terms.expires_at is not None and terms.expires_at <= self._now:
            raise InvalidRequest("the expiry is in the past", param="expires")
        row = ApiKey(
            id=key.id,
            organisation_id=organisation,
            project_id=project,
            kind=KeyKind.ADMIN if key.is_admin else KeyKind.PROJECT,
            name=checked_name(terms.name, param="name"),
            hash=key.hash(peppers[peppers.current]),
            pepper_version=peppers.current,
            last4=key.last4,
            requests_per_minute=terms.requests_per_minute,
            tokens_per_minute=terms.tokens_per_minute,
            created_at=self._now,
            expires_at=terms.expires_at,
            revoked_at=None,
            endpoints=_listed(terms.endpoints),
            models=_listed(terms.models),
            networks=_listed(terms.networks),
        )
        self._rows.add(row)
        return row


def _checked(environment: str) -> str:
    if keys.ENVIRONMENT.fullmatch(environment) is None or environment == keys.ADMIN:
        raise InvalidRequest(
            f"environment {environment[:20]!r}: 1 to 16 letters and digits, not 'admin'",
            param="environment",
        )
    return environment


def _listed(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def checked_weight(weight: int | None) -> int | None:
    """Raises InvalidRequest."""
    if weight is not None and not 1 <= weight <= MOST_WEIGHT:
        raise InvalidRequest(f"weight {weight} must be from 1 to {MOST_WEIGHT}", param="weight")
    return weight
