"""The people of an organisation, as somebody among them may change them."""

from datetime import datetime

from gateway.errors import Conflict, ResourceNotFound
from gateway.identity.models import Role, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.people import checked_email, checked_person
from gateway.identity.principal import Principal
from gateway.identity.rights import require_grant
from gateway.ids import new_id


class Staff:
    """Runs inside the caller's unit of work. Owners alone make, change and remove owners."""

    def __init__(self, rows: OrganisationRepository, who: Principal, now: datetime) -> None:
        self._rows, self._who, self._now = rows, who, now

    async def person(self, user_id: str) -> User:
        """Raises ResourceNotFound."""
        row = await self._rows.person(user_id)
        if row is None:
            raise ResourceNotFound("no user of this id")
        return row

    async def add(self, email: str, name: str, role: Role) -> User:
        """Raises Conflict, InvalidRequest, PermissionDenied."""
        require_grant(self._who, role)
        email = checked_email(email)
        if any(row.email == email for row in await self._rows.people()):
            raise Conflict("there is a user with this address", param="email")
        row = User(
            id=new_id("user"),
            organisation_id=self._who.organisation,
            email=email,
            name=checked_person(name),
            role=role,
            created_at=self._now,
            removed_at=None,
        )
        self._rows.add(row)
        return row

    async def give_role(self, user_id: str, role: Role) -> tuple[User, Role]:
        """The person, and their role before. Raises ResourceNotFound, PermissionDenied."""
        row = await self.person(user_id)
        before = Role(row.role)
        require_grant(self._who, before)
        require_grant(self._who, role)
        row.role = role
        return row, before

    async def remove(self, user_id: str) -> User:
        """Their keys end with them. Raises ResourceNotFound, PermissionDenied."""
        row = await self.person(user_id)
        require_grant(self._who, Role(row.role))
        row.removed_at = self._now
        for key in await self._rows.keys_of(row):
            key.revoked_at = self._now
        for member in await self._rows.members():
            if member.user_id == row.id:
                await self._rows.remove(member)
        return row
