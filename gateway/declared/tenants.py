"""Organisations, projects, people and keys of a file."""

from collections.abc import Mapping

from gateway.declared.change import Mark
from gateway.declared.declaration import (
    Declaration,
    DeclaredKey,
    DeclaredOrganisation,
    DeclaredProject,
)
from gateway.declared.source import DeclarationInvalid
from gateway.declared.work import Work, shown
from gateway.errors import GatewayError
from gateway.identity.models import ApiKey, Organisation, Project, ProjectUser, Role, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.repository import IdentityRepository
from gateway.identity.service import IdentityService, KeyTerms
from gateway.ids import new_id
from gateway.limits.models import Level
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Subject
from gateway.usage.repository import LedgerRepository


async def bring_about_tenants(work: Work, declared: Declaration) -> None:
    plans = {row.name: row.id for row in await LimitRepository(work.session).plans()}
    names = IdentityRepository(work.session)
    for name, said in declared.organisations.items():
        row = await names.organisation(name)
        await _One(work, f"organisations.{name}", said, plans).bring_about(name, row)


class _One:
    """One organisation."""

    def __init__(
        self, work: Work, path: str, said: DeclaredOrganisation, plans: Mapping[str, str]
    ) -> None:
        self._work, self._path, self._said, self._plans = work, path, said, plans
        self._service = IdentityService(work.session, work.now)

    async def bring_about(self, name: str, row: Organisation | None) -> None:
        made = row is None
        if row is None:
            row = await self._service.organisation(name, create=True)
            row.billing = "postpaid"
        self._id = row.id
        self._rows = OrganisationRepository(self._work.session, row.id)
        if made:
            self._work.changed(Mark.MADE, self._path)
            await self._work.note(row.id, "organization.created", row.id, name=name)
        await self._terms(row)
        subject = Subject(Level.ORGANISATION, row.id)
        await self._work.limit(self._path, row.id, subject, self._said.limits)
        await self._people()
        await self._admin_keys()
        await self._projects()

    async def _terms(self, row: Organisation) -> None:
        change = {}
        if self._said.says_plan:
            plan = self._said.plan
            if plan is not None and plan not in self._plans:
                raise DeclarationInvalid(f"{self._path}.plan: there is no plan {plan[:64]!r}")
            wanted = None if plan is None else self._plans[plan]
            names = {plan_id: name for name, plan_id in self._plans.items()}
            if row.plan_id != wanted:
                self._work.differs(f"{self._path}.plan", names.get(row.plan_id or ""), plan)
                row.plan_id = wanted
                change["plan"] = plan
        billing = self._said.billing
        if billing and self._work.differs(f"{self._path}.billing", row.billing, billing):
            row.billing = billing
            change["billing"] = billing
        if change:
            # Counters of budgets that come to hold again miss what was spent meanwhile.
            await LedgerRepository(self._work.session).doubt_counters()
            await self._work.note(row.id, "organization.updated", row.id, **change)

    async def _people(self) -> None:
        known = {row.email: row for row in await self._rows.people()}
        for email, said in self._said.people.items():
            path, row = f"{self._path}.people.{email}", known.get(email)
            if row is None:
                row = User(
                    id=new_id("user"), organisation_id=self._id, email=email, name=said.name,
                    role=said.role, created_at=self._work.now, removed_at=None,
                )  # fmt: skip
                self._rows.add(row)
                self._work.changed(Mark.MADE, path, after=said.role)
                await self._work.note(self._id, "user.added", row.id, role=said.role)
                continue
            before = row.role
            other_name = self._work.differs(f"{path}.name", row.name, said.name)
            if self._work.differs(f"{path}.role", row.role, str(said.role)) or other_name:
                row.name, row.role = said.name, said.role
                await self._work.note(
                    self._id, "user.updated", row.id, role=said.role, before=before
                )
        if self._prunes(self._said.listed, "people"):
            for email in known.keys() - self._said.people.keys():
                await self._remove(known[email])

    async def _remove(self, row: User) -> None:
        row.removed_at = self._work.now
        for key in await self._rows.keys_of(row):
            key.revoked_at = self._work.now
        for member in await self._rows.members():
            if member.user_id == row.id:
                await self._rows.remove(member)
        self._work.changed(Mark.ENDED, f"{self._path}.people.{row.email}", row.role)
        await self._work.note(self._id, "user.deleted", row.id)

    async def _admin_keys(self) -> None:
        """Those that are nobody's."""
        known = {row.name: row for row in await self._rows.keys(None) if row.user_id is None}
        for name, role in self._said.admin_keys.items():
            path, row = f"{self._path}.admin_keys.{name}", known.get(name)
            if row is None:
                key = self._service.issue_admin_of(
                    self._id, KeyTerms(name=name), peppers=self._work.peppers, role=role
                )
                self._work.changed(Mark.MADE, path, after=role, secret=key.text)
                await self._work.note(self._id, "api_key.created", key.id, role=role)
            elif self._work.differs(f"{path}.role", row.role or str(Role.OWNER), str(role)):
                row.role = role
                await self._work.note(self._id, "api_key.updated", row.id, role=role)
        if self._prunes(self._said.listed, "admin_keys"):
            for name in known.keys() - self._said.admin_keys.keys():
                await self._revoke(known[name], f"{self._path}.admin_keys.{name}", None)

    async def _projects(self) -> None:
        known = {row.name: row for row in await self._rows.projects()}
        for name, said in self._said.projects.items():
            path, row = f"{self._path}.projects.{name}", known.get(name)
            if row is None:
                row = await self._service.create_project_of(self._id, name)
                self._work.changed(Mark.MADE, path)
                await self._work.note(self._id, "project.created", row.id, row.id, name=name)
            await self._project(path, row, said)
        if self._prunes(self._said.listed, "projects"):
            for name in known.keys() - self._said.projects.keys():
                row = known[name]
                row.archived_at = self._work.now
                for key in await self._rows.keys(row.id):
                    key.revoked_at = self._work.now
                self._work.changed(Mark.ENDED, f"{self._path}.projects.{name}")
                await self._work.note(self._id, "project.archived", row.id, row.id)

    async def _project(self, path: str, row: Project, said: DeclaredProject) -> None:
        limit = self._work.limit
        await limit(path, self._id, Subject(Level.PROJECT, row.id), said.limits, row.id)
        for level, group in ((Level.CUSTOMER, said.customers), (Level.TAG, said.tags)):
            for name, limits in group.items():
                subject = Subject(level, f"{row.id}/{name}")
                await limit(f"{path}.{level}s.{name}", self._id, subject, limits, row.id)
        await self._members(path, row, said)
        known: dict[str, ApiKey] = {}
        for key in await self._rows.keys(row.id):
            known.setdefault(key.name, key)
        for name, terms in said.keys.items():
            await self._key(f"{path}.keys.{name}", row, name, terms, known.get(name))
        if self._prunes(said.listed, "keys"):
            for key in await self._rows.keys(row.id):
                if key.name not in said.keys and key.service_account_id is None:
                    await self._revoke(key, f"{path}.keys.{key.name}", row.id)

    async def _members(self, path: str, row: Project, said: DeclaredProject) -> None:
        people = {person.email: person for person in await self._rows.people()}
        known = {member.user_id: member for member in await self._rows.members(row.id)}
        for email, role in said.people.items():
            place = f"{path}.people.{email}"
            if (person := people.get(email)) is None:
                raise DeclarationInvalid(f"{place}: is nobody of this organisation's people")
            member = known.pop(person.id, None)
            if member is None:
                member = ProjectUser(
                    project_id=row.id, user_id=person.id, role=role, created_at=self._work.now
                )
                self._rows.add(member)
                self._work.changed(Mark.MADE, place, after=role)
                await self._work.note(self._id, "user.added", person.id, row.id, role=role)
            elif self._work.differs(place, member.role, str(role)):
                member.role = role
                await self._work.note(self._id, "user.updated", person.id, row.id, role=role)
        if self._prunes(said.listed, "people"):
            emails = {person.id: person.email for person in people.values()}
            for user_id, member in known.items():
                await self._rows.remove(member)
                self._work.changed(Mark.ENDED, f"{path}.people.{emails[user_id]}", member.role)
                await self._work.note(self._id, "user.deleted", user_id, row.id)

    async def _key(
        self, path: str, project: Project, name: str, said: DeclaredKey, row: ApiKey | None
    ) -> None:
        scopes = {"endpoints": said.endpoints, "models": said.models, "networks": said.networks}
        wanted = {what: None if many is None else list(many) for what, many in scopes.items()}
        if row is None:
            try:
                terms = KeyTerms(
                    name=name, expires_at=said.expires_at, endpoints=said.endpoints,
                    models=said.models, networks=said.networks,
                )  # fmt: skip
                key = self._service.issue(project, terms, peppers=self._work.peppers)
            except GatewayError as error:
                raise DeclarationInvalid(f"{path}: {error.message}") from error
            self._work.changed(Mark.MADE, path, secret=key.text)
            await self._work.note(self._id, "api_key.created", key.id, project.id)
            key_id = key.id
        else:
            key_id = row.id
            before = {"expires": row.expires_at} | {what: getattr(row, what) for what in wanted}
            after = {"expires": said.expires_at} | wanted
            changes = [
                what
                for what in after
                if self._work.differs(f"{path}.{what}", before[what], after[what])
            ]
            if changes:
                row.expires_at = said.expires_at
                for what, many in wanted.items():
                    setattr(row, what, many)
                told = {what: shown(after[what]) for what in changes}
                await self._work.note(self._id, "api_key.updated", key_id, project.id, **told)
        await self._work.limit(path, self._id, Subject(Level.KEY, key_id), said.limits, project.id)

    async def _revoke(self, row: ApiKey, path: str, project: str | None) -> None:
        row.revoked_at = self._work.now
        self._work.changed(Mark.ENDED, path, f"...{row.last4}")
        await self._work.note(self._id, "api_key.deleted", row.id, project)

    def _prunes(self, listed: frozenset[str], what: str) -> bool:
        """Only lists that the file has are complete."""
        return self._work.prune and what in listed
