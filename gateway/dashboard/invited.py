"""Who was invited to an organisation accepts by signing in: the sign-in service vouches for their
address, which is all that an invite names. They come as what the invite says, now and later.
"""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.service import Actor, AuditLog
from gateway.errors import SignInRefused
from gateway.identity.invite_repository import ArrivingRepository
from gateway.identity.login_repository import LoginRepository
from gateway.identity.logins import NO_PASSWORD, LoginService
from gateway.identity.models import Invite, Login, ProjectUser, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.ids import new_id


class Invited:
    """One arrival, inside the caller's unit of work."""

    def __init__(self, session: AsyncSession, now: datetime) -> None:
        self._session, self._now = session, now
        self._logins = LoginRepository(session)

    async def accept(self, email: str, subject: str, name: str) -> Login | None:
        """All that is open for this address; the login of an organisation that invited them, now
        or before. None: none did. Raises SignInRefused."""
        invites = ArrivingRepository(self._session)
        newest: Login | None = None
        for invite in await invites.pending(email, self._now):
            newest = await self._join(invite, subject, name)
        if newest is not None:
            return newest
        known = [(login, user) for login, user in await self._logins.of_subject(subject) if user]
        came = await invites.accepted([user.id for _, user in known])
        return next((login for login, user in known if user.id in came), None)

    async def _join(self, invite: Invite, subject: str, name: str) -> Login:
        rows = OrganisationRepository(self._session, invite.organisation_id)
        user = next((row for row in await rows.people() if row.email == invite.email), None)
        if user is None:
            user = User(
                id=new_id("user"), organisation_id=invite.organisation_id, email=invite.email,
                name=name, role=invite.role, created_at=self._now, removed_at=None,
            )  # fmt: skip
            rows.add(user)
        await self._session.flush()
        login = await self._logins.of_user(user.id)
        if login is None:
            login = await LoginService(self._session, self._now).make(user, NO_PASSWORD)
        if login.subject not in (None, subject):
            raise SignInRefused("This address was somebody else's: ask who runs this gateway.")
        login.subject = subject
        await self._members(rows, invite, user)
        invite.accepted_at, invite.user_id = self._now, user.id
        await self._session.flush()
        log = AuditLog(self._session, invite.organisation_id, self._now)
        await log.add(
            "invite.accepted", invite.id, actor=Actor("login", login.id), change={"user": user.id}
        )
        return login

    async def _members(self, rows: OrganisationRepository, invite: Invite, user: User) -> None:
        """Of projects that are still there."""
        live = {row.id for row in await rows.projects()}
        known = {row.project_id for row in await rows.members() if row.user_id == user.id}
        for project, role in invite.projects.items():
            if project in live - known:
                rows.add(
                    ProjectUser(
                        project_id=project, user_id=user.id, role=role, created_at=self._now
                    )
                )
