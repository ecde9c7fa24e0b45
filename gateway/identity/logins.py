"""Signing in and out, and passwords.

A cookie holds 256 random bits; the database knows their hash, so whoever reads it can sign in as
nobody. A browser that shows no life for half a day is signed out, and any is after two weeks.
"""

import hashlib
import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database
from gateway.errors import Conflict, ResourceNotFound, SignInLimited, SignInRefused
from gateway.identity.attempts import Attempts
from gateway.identity.login_repository import Found, LoginRepository
from gateway.identity.models import Login, Role, SignIn, User
from gateway.identity.passwords import Passwords, check_password
from gateway.identity.people import checked_email
from gateway.identity.viewer import Viewer
from gateway.ids import new_id

IDLE = timedelta(hours=12)
LONGEST = timedelta(days=14)
SEEN_EVERY = timedelta(minutes=5)  # how exactly it is known when a browser was last seen
NO_PASSWORD = ""  # of who comes from the sign-in service alone
MOST_TRIED = 8  # logins of one address: a person of many organisations


class Logins:
    """Belongs to one event loop."""

    def __init__(
        self, database: Database, passwords: Passwords, attempts: Attempts | None = None
    ) -> None:
        self._database = database
        self._passwords = passwords
        self._attempts = attempts or Attempts()

    async def sign_in(self, email: str, password: str, *, address: str, browser: str) -> str:
        """The cookie's value. Raises SignInRefused, SignInLimited."""
        names = f"address {address}", f"email {email.strip().lower()[:254]}"
        if (wait := self._attempts.wait_s(*names)) > 0:
            raise SignInLimited(wait)
        login = await self._matching(email.strip().lower(), password)
        if login is None:
            self._attempts.failed(*names)
            raise SignInRefused
        self._attempts.succeeded(*names)
        fresh = None
        if self._passwords.is_outdated(login.password):
            fresh = await self._passwords.hash(password)
        return await self.begin(login.id, browser, fresh)

    async def viewer(self, cookie: str) -> Viewer | None:
        """None: it is nobody's, or ended."""
        now, hash = datetime.now(UTC), hash_of(cookie)
        async with self._database.reading() as session:
            rows = LoginRepository(session)
            if (found := await rows.signed_in(hash, now)) is None:
                return None
            sign_in, login, user = found
            viewer = await _viewer(rows, login, user)
        if now - sign_in.seen_at > SEEN_EVERY:
            until = min(now + IDLE, sign_in.begun_at + LONGEST)
            async with self._database.unit_of_work() as session:
                await LoginRepository(session).seen(hash, now, until)
        return viewer

    async def sign_out(self, cookie: str) -> None:
        async with self._database.unit_of_work() as session:
            await LoginRepository(session).end(hash_of(cookie))

    async def change_password(self, viewer: Viewer, cookie: str, old: str, new: str) -> None:
        """Other browsers are signed out. Raises SignInRefused, SignInLimited, InvalidRequest."""
        check_password(new)
        name = f"change {viewer.login}"
        if (wait := self._attempts.wait_s(name)) > 0:
            raise SignInLimited(wait)
        async with self._database.reading() as session:
            known = await session.get(Login, viewer.login)
        if known is None or not await self._passwords.verify(known.password or None, old):
            self._attempts.failed(name)
            raise SignInRefused("The password you have now is not this one.")
        self._attempts.succeeded(name)
        fresh = await self._passwords.hash(new)
        async with self._database.unit_of_work() as session:
            row = await session.get(Login, viewer.login)
            assert row is not None, "logins end, and are not deleted"
            row.password, row.changed_at = fresh, datetime.now(UTC)
            await LoginRepository(session).end_others(viewer.login, but=hash_of(cookie))

    async def end_others(self, viewer: Viewer, cookie: str) -> None:
        async with self._database.unit_of_work() as session:
            await LoginRepository(session).end_others(viewer.login, but=hash_of(cookie))

    async def _matching(self, email: str, password: str) -> Login | None:
        async with self._database.reading() as session:
            found = await LoginRepository(session).named(email)
        for login, _ in found[:MOST_TRIED]:
            if await self._passwords.verify(login.password or None, password):
                return login
        if not found:
            await self._passwords.verify(None, password)
        return None

    async def begin(self, login: str, browser: str, fresh: str | None = None) -> str:
        """Of who was found to be right. ``fresh``: their password's new hash."""
        cookie, now = secrets.token_urlsafe(32), datetime.now(UTC)
        async with self._database.unit_of_work() as session:
            rows = LoginRepository(session)
            await rows.forget_ended(now)
            if fresh is not None and (row := await session.get(Login, login)) is not None:
                row.password = fresh
            rows.add(
                SignIn(
                    hash=hash_of(cookie),
                    login_id=login,
                    begun_at=now,
                    seen_at=now,
                    expires_at=now + IDLE,
                    browser="".join(filter(str.isprintable, browser))[:200],
                )
            )
        return cookie


class LoginService:
    """Logins as operators make and end them, inside the caller's unit of work.

    ``password`` is always a hash, or ``NO_PASSWORD``.
    """

    def __init__(self, session: AsyncSession, now: datetime) -> None:
        self._rows = LoginRepository(session)
        self._session = session
        self._now = now

    async def make(self, user: User, password: str) -> Login:
        """Raises Conflict."""
        if await self._rows.of_user(user.id) is not None:
            raise Conflict("this user can sign in already", param="email")
        return self._add(user_id=user.id, email=None, password=password)

    async def make_operator(self, email: str, password: str) -> Login:
        """Raises Conflict, InvalidRequest."""
        email = checked_email(email)
        if any(user is None for _, user in await self._rows.named(email)):
            raise Conflict("there is an operator with this address", param="email")
        return self._add(user_id=None, email=email, password=password)

    async def set_password(self, login: Login, password: str) -> None:
        """All its browsers are signed out."""
        login.password, login.changed_at = password, self._now
        await self._rows.end_others(login.id)

    async def end(self, login: Login) -> None:
        login.ended_at = self._now
        await self._rows.end_others(login.id)

    async def find(self, email: str, organisation: str | None = None) -> Found:
        """``organisation``: its id; "" for an operator; None: wherever there is one alone.

        Raises ResourceNotFound, Conflict.
        """
        found = [
            each
            for each in await self._rows.named(checked_email(email))
            if organisation in (None, each[1].organisation_id if each[1] else "")
        ]
        if not found:
            raise ResourceNotFound("nobody signs in with this address", param="email")
        if len(found) > 1:
            raise Conflict("several sign in with this address: name the organisation")
        return found[0]

    def _add(self, *, user_id: str | None, email: str | None, password: str) -> Login:
        row = Login(
            id=new_id("login"),
            user_id=user_id,
            email=email,
            password=password,
            created_at=self._now,
            changed_at=self._now,
            ended_at=None,
        )
        self._rows.add(row)
        return row


def hash_of(cookie: str) -> str:
    """It is random already: no key and no slow hash is needed."""
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()


async def _viewer(rows: LoginRepository, login: Login, user: User | None) -> Viewer:
    if user is None:
        return Viewer(
            login=login.id, email=login.email or "", name=(login.email or "").split("@")[0]
        )
    return Viewer(
        login=login.id,
        email=user.email,
        name=user.name,
        organisation=user.organisation_id,
        organisation_name=await rows.organisation_name(user.organisation_id) or "",
        role=Role(user.role),
        project_roles=await rows.project_roles(user.id),
    )
