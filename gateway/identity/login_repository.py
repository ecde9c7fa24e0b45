"""Queries over logins and signed-in browsers. Signing in comes before a tenant is known."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.identity.models import Login, Organisation, ProjectUser, SignIn, User

Found = tuple[Login, User | None]


class LoginRepository:
    """Sees every tenant: whoever signs in has yet to say whose they are."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def add(self, row: Login | SignIn) -> None:
        self._session.add(row)

    async def named(self, email: str) -> Sequence[Found]:
        """Live logins under this address: an operator's, and of each organisation at most one."""
        statement = (
            select(Login, User)
            .outerjoin(User, User.id == Login.user_id)
            .where(Login.ended_at.is_(None))
            .where(or_(Login.email == email, (User.email == email) & User.removed_at.is_(None)))
            .order_by(Login.created_at, Login.id)
        )
        return [(login, user) for login, user in await self._session.execute(statement)]

    async def of_subject(self, subject: str) -> Sequence[Found]:
        """Live logins of one person of the sign-in service."""
        statement = (
            select(Login, User)
            .outerjoin(User, User.id == Login.user_id)
            .where(Login.ended_at.is_(None), Login.subject == subject)
            .where(or_(Login.user_id.is_(None), User.removed_at.is_(None)))
            .order_by(Login.created_at, Login.id)
        )
        return [(login, user) for login, user in await self._session.execute(statement)]

    async def end_of_subject(self, subject: str, *, but: str) -> None:
        """Browsers of the logins this person had as somebody else here."""
        theirs = select(Login.id).where(Login.subject == subject, Login.id != but)
        await self._session.execute(delete(SignIn).where(SignIn.login_id.in_(theirs)))

    async def of_user(self, user_id: str) -> Login | None:
        statement = select(Login).where(Login.user_id == user_id, Login.ended_at.is_(None))
        return await self._session.scalar(statement)

    async def live(self) -> Sequence[Found]:
        statement = (
            select(Login, User)
            .outerjoin(User, User.id == Login.user_id)
            .where(
                Login.ended_at.is_(None), or_(Login.user_id.is_(None), User.removed_at.is_(None))
            )
            .order_by(Login.created_at, Login.id)
        )
        return [(login, user) for login, user in await self._session.execute(statement)]

    async def signed_in(self, hash: str, now: datetime) -> tuple[SignIn, Login, User | None] | None:
        statement = (
            select(SignIn, Login, User)
            .join(Login, Login.id == SignIn.login_id)
            .outerjoin(User, User.id == Login.user_id)
            .where(SignIn.hash == hash, SignIn.expires_at > now, Login.ended_at.is_(None))
            .where(or_(Login.user_id.is_(None), User.removed_at.is_(None)))
        )
        row = (await self._session.execute(statement)).one_or_none()
        return None if row is None else (row[0], row[1], row[2])

    async def browsers(self, login: str, now: datetime) -> Sequence[SignIn]:
        """Last seen first."""
        statement = (
            select(SignIn)
            .where(SignIn.login_id == login, SignIn.expires_at > now)
            .order_by(SignIn.seen_at.desc())
        )
        return (await self._session.scalars(statement)).all()

    async def organisation_name(self, organisation: str) -> str | None:
        row = await self._session.get(Organisation, organisation)
        return None if row is None else row.name

    async def project_roles(self, user: str) -> tuple[tuple[str, str], ...]:
        statement = select(ProjectUser.project_id, ProjectUser.role).where(
            ProjectUser.user_id == user
        )
        return tuple((project, role) for project, role in await self._session.execute(statement))

    async def seen(self, hash: str, at: datetime, until: datetime) -> None:
        await self._session.execute(
            update(SignIn).where(SignIn.hash == hash).values(seen_at=at, expires_at=until)
        )

    async def end(self, hash: str) -> None:
        await self._session.execute(delete(SignIn).where(SignIn.hash == hash))

    async def end_others(self, login: str, but: str = "") -> None:
        await self._session.execute(
            delete(SignIn).where(SignIn.login_id == login, SignIn.hash != but)
        )

    async def forget_ended(self, now: datetime) -> None:
        await self._session.execute(delete(SignIn).where(SignIn.expires_at <= now))
