"""Who comes from the sign-in service becomes somebody here: found, or made the first time.

The service is believed about who somebody is, and its claim says as what they come: a role that
changed there changes here with the next sign-in. Once somebody came, they are known by the
service's own name for them; another of the same address is refused, for addresses are given anew.
"""

import hashlib
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.service import Actor, AuditLog
from gateway.dashboard.invited import Invited
from gateway.db import Database
from gateway.errors import SignInRefused
from gateway.identity.login_repository import LoginRepository
from gateway.identity.logins import NO_PASSWORD, Logins, LoginService
from gateway.identity.models import Login, User
from gateway.identity.oidc_settings import Claims, OidcSettings, RoleEntry
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.people import MOST_NAME, checked_email
from gateway.identity.service import IdentityService
from gateway.ids import new_id


class Arrivals:
    """Belongs to one event loop."""

    def __init__(self, database: Database, logins: Logins, settings: OidcSettings) -> None:
        self._database = database
        self._logins = logins
        self._settings = settings

    async def arrive(self, claims: Claims, *, browser: str) -> str:
        """The cookie's value. Raises SignInRefused, InvalidRequest, ResourceNotFound."""
        entry = self._settings.entry(claims)
        email, subject = self._email(claims), self._subject(claims)
        name, now = name_of(claims, email), datetime.now(UTC)
        async with self._database.publish(alone=True) as session:
            login = await Invited(session, now).accept(email, subject, name)
            if entry is not None:
                login = await _Place(session, entry, now).login(email, subject, name)
            if login is None:
                raise SignInRefused("You are known to the sign-in service, but have no role here.")
            await LoginRepository(session).end_of_subject(subject, but=login.id)
        return await self._logins.begin(login.id, browser)

    def _email(self, claims: Claims) -> str:
        """Raises SignInRefused."""
        email, looked = claims.get("email"), claims.get("email_verified")
        trusted = looked is True or (looked is None and self._settings.trust_email)
        if not isinstance(email, str) or not trusted:
            raise SignInRefused("The sign-in service does not vouch for your address.")
        return checked_email(email)

    def _subject(self, claims: Claims) -> str:
        """As we know it: a name of the service can be anything."""
        text = f"{self._settings.issuer}\n{claims['sub']}"
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class _Place:
    """Where an entry of the settings leads: among the operators, or to an organisation."""

    def __init__(self, session: AsyncSession, entry: RoleEntry, now: datetime) -> None:
        self._session, self._entry, self._now = session, entry, now
        self._rows = LoginRepository(session)

    async def login(self, email: str, subject: str, name: str) -> Login:
        organisation = "" if self._entry.operator else await self._organisation()
        found = [
            *await self._rows.of_subject(subject),
            *await self._rows.named(email),
        ]
        known = next((e for e in found if (e[1].organisation_id if e[1] else "") == organisation),
                     None)  # fmt: skip
        user = known[1] if known else None
        if organisation and user is None:
            user = await self._person(organisation, email, name)
        login = known[0] if known else await self._made(user, email)
        if login.subject not in (None, subject):
            raise SignInRefused("This address was somebody else's: ask who runs this gateway.")
        login.subject = subject
        await self._session.flush()
        if user is not None:
            await self._give_role(user, login)
        return login

    async def _organisation(self) -> str:
        service = IdentityService(self._session, self._now)
        return (await service.organisation(self._entry.organisation)).id

    async def _made(self, user: User | None, email: str) -> Login:
        service = LoginService(self._session, self._now)
        if user is not None:
            return await service.make(user, NO_PASSWORD)
        return await service.make_operator(email, NO_PASSWORD)

    async def _person(self, organisation: str, email: str, name: str) -> User:
        """Who is in the organisation already, or a new one."""
        rows = OrganisationRepository(self._session, organisation)
        for row in await rows.people():
            if row.email == email:
                return row
        user = User(
            id=new_id("user"), organisation_id=organisation, email=email, name=name,
            role=self._entry.role, created_at=self._now, removed_at=None,
        )  # fmt: skip
        rows.add(user)
        await self._session.flush()
        log = AuditLog(self._session, organisation, self._now)
        await log.add("user.added", user.id, actor=Actor("operator", "sign-in service"),
                      change={"role": self._entry.role})  # fmt: skip
        return user

    async def _give_role(self, user: User, login: Login) -> None:
        if user.role == self._entry.role:
            return
        change = {"role": self._entry.role, "before": user.role}
        user.role = self._entry.role
        log = AuditLog(self._session, user.organisation_id, self._now)
        await log.add("user.updated", user.id, actor=Actor("login", login.id), change=change)


def name_of(claims: Claims, email: str) -> str:
    name = claims.get("name")
    text = "".join(filter(str.isprintable, name)).strip() if isinstance(name, str) else ""
    return text[:MOST_NAME] or email.split("@")[0]
