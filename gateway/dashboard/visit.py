"""One viewer's request for one page, with a database session that sees what they may see."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.service import Actor, AuditLog
from gateway.dashboard.sources import Sources
from gateway.errors import ResourceNotFound
from gateway.identity.models import Project
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.principal import Principal
from gateway.identity.rights import RIGHTS, Right, require, roles_of
from gateway.identity.viewer import Viewer
from gateway.usage.report import UsageReport

ROOT = "/dashboard"
Form = Mapping[str, str]  # a form's fields; of several with one name, the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """``organisation`` is the viewer's own, or the one an operator looks at; "" is all of them."""

    viewer: Viewer
    organisation: str
    organisation_name: str
    session: AsyncSession
    sources: Sources
    path: str
    query: Mapping[str, str]
    zone: ZoneInfo
    now: datetime

    @property
    def who(self) -> Principal:
        return self.viewer.acting_in(self.organisation)

    @property
    def days_zone(self) -> ZoneInfo:
        """Whose days sums are cut into: over all organisations UTC's, as they are kept."""
        return self.zone if self.organisation else ZoneInfo("UTC")

    @property
    def rows(self) -> OrganisationRepository:
        assert self.organisation, "this page is of one organisation"
        return OrganisationRepository(self.session, self.organisation)

    def may(self, right: str, project: str | None = None) -> bool:
        """For templates, which leave out what would be refused."""
        return any(Right(right) in RIGHTS[role] for role in roles_of(self.who, project))

    def require(self, right: Right, project: str | None = None) -> None:
        """Raises PermissionDenied."""
        require(self.who, right, project)

    async def project(self, project_id: str) -> Project:
        """Raises ResourceNotFound, also for another organisation's."""
        for row in await self.rows.projects(archived=True):
            if row.id == project_id:
                return row
        raise ResourceNotFound("no project of this id")

    def report(self, project: str | None = None) -> UsageReport:
        return UsageReport(self.session, self.organisation or None, project)

    async def note(
        self, kind: str, object_id: str, project: str | None = None, **change: Any
    ) -> None:
        """In the audit log, within the change's own transaction."""
        log = AuditLog(self.session, self.organisation, self.now)
        actor = Actor("login", self.viewer.login)
        await log.add(kind, object_id, actor=actor, project=project, change=change)

    def href(self, path: str, **params: object) -> str:
        """A page's address that keeps to the organisation an operator looks at."""
        if self.viewer.is_operator and self.organisation:
            params = {"org": self.organisation} | params
        given = {name: str(value) for name, value in params.items() if value not in (None, "")}
        return f"{ROOT}{path or '/'}" + (f"?{urlencode(given)}" if given else "")

    def here(self, **params: object) -> str:
        """This page with some of its state changed."""
        return self.href(self.path, **({**self.query} | params))
