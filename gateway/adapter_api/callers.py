"""Whose adapters a request is about.

A tenant's key speaks for its own project. An admin key names a tenant of its organisation with
``?tenant=``; without one it speaks for the operator's own project, whose adapters can be granted
to tenants. A tenant that does not exist and one of another organisation are the same 404.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database, Tenancy
from gateway.errors import PermissionDenied, ResourceNotFound
from gateway.http import Request
from gateway.identity.models import Project
from gateway.identity.principal import Principal
from gateway.identity.repository import IdentityRepository
from gateway.identity.rights import Right, require
from gateway.ids import new_id

OPERATOR = "operator"  # the project of adapters that no tenant owns


class Gate(Protocol):
    async def identify(self, request: Request) -> Principal:
        """Raises Unauthenticated."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    principal: Principal
    project: str  # whose adapters are meant

    @property
    def tenancy(self) -> Tenancy:
        return Tenancy(self.principal.organisation, self.project)

    def require_admin(self, right: Right) -> None:
        """Raises PermissionDenied."""
        if not self.principal.admin:
            raise PermissionDenied("Only admin keys may do this.")
        require(self.principal, right)


class Callers:
    def __init__(self, gate: Gate, database: Database) -> None:
        self._gate, self._database = gate, database

    async def identify(self, request: Request, tenant: str | None) -> Caller:
        """Raises Unauthenticated, PermissionDenied or ResourceNotFound."""
        principal = await self._gate.identify(request)
        if principal.models is not None:
            raise PermissionDenied(
                "This API key is for some models alone, and looks after no adapters."
            )
        if not principal.admin:
            if tenant not in (None, principal.project_name):
                raise no_tenant(tenant)
            return Caller(principal, principal.project)
        project = await self.project(principal, tenant or OPERATOR)
        require(principal, Right.READ if request.method == "GET" else Right.ADAPTERS, project)
        return Caller(principal, project)

    async def project(self, principal: Principal, name: str) -> str:
        """The id of a project of the admin's organisation. Raises ResourceNotFound."""
        async with self._database.reading() as session:
            found = await _find(session, principal.organisation, name)
        if found is not None:
            return found
        if name != OPERATOR:
            raise no_tenant(name)
        async with self._database.publish(alone=True) as session:
            found = await _find(session, principal.organisation, name)
            return found or _make(session, principal.organisation)


async def _find(session: AsyncSession, organisation: str, name: str) -> str | None:
    for project in await IdentityRepository(session).projects(name):
        if project.organisation_id == organisation:
            return project.id
    return None


def _make(session: AsyncSession, organisation: str) -> str:
    project = Project(
        id=new_id("prj"),
        organisation_id=organisation,
        name=OPERATOR,
        created_at=datetime.now(UTC),
        archived_at=None,
    )
    IdentityRepository(session).add(project)
    return project.id


def no_tenant(name: str | None) -> ResourceNotFound:
    return ResourceNotFound(f"no tenant {(name or '')[:80]!r}", param="tenant")
