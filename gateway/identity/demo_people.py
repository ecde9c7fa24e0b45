"""Those who sign in to the demo: made once, with passwords that are made up here."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import ResourceNotFound
from gateway.identity.logins import LoginService
from gateway.identity.models import Role, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.passwords import Passwords, made_up
from gateway.identity.service import DEFAULT_ORGANISATION, IdentityService
from gateway.ids import new_id


class DemoPeople:
    def __init__(self, session: AsyncSession, now: datetime, passwords: Passwords) -> None:
        self._session = session
        self._now = now
        self._passwords = passwords
        self._logins = LoginService(session, now)

    async def ensure(
        self, wanted: Mapping[str, Role | None], known: Mapping[str, str]
    ) -> dict[str, str]:
        """Everybody's password. One that was changed since is what its owner made it, and stays."""
        found = {}
        for email, role in wanted.items():
            found[email] = known.get(email) or made_up()
            if not await self._is_there(email):
                await self._make(email, role, await self._passwords.hash(found[email]))
        return found

    async def _is_there(self, email: str) -> bool:
        try:
            await self._logins.find(email)
        except ResourceNotFound:
            return False
        return True

    async def _make(self, email: str, role: Role | None, password: str) -> None:
        if role is None:
            await self._logins.make_operator(email, password)
            return
        owner = await IdentityService(self._session, self._now).organisation(DEFAULT_ORGANISATION)
        user = User(
            id=new_id("user"),
            organisation_id=owner.id,
            email=email,
            name=email.partition("@")[0].capitalize(),
            role=role,
            created_at=self._now,
            removed_at=None,
        )
        OrganisationRepository(self._session, owner.id).add(user)
        await self._session.flush()
        await self._logins.make(user, password)
