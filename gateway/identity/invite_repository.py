"""Queries over invites: those of one organisation, and those of one address anywhere."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.identity.models import Invite


class InviteRepository:
    """Every select starts from the organisation's own rows."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, row: Invite) -> None:
        self._session.add(row)

    async def newest_first(self) -> Sequence[Invite]:
        order = (Invite.created_at.desc(), Invite.id.desc())
        return (await self._session.scalars(self._mine().order_by(*order))).all()

    async def one(self, invite: str) -> Invite | None:
        return (await self._session.scalars(self._mine().where(Invite.id == invite))).one_or_none()

    async def pending(self, email: str, now: datetime) -> Invite | None:
        statement = self._mine().where(Invite.email == email, *_open(now))
        return (await self._session.scalars(statement)).first()

    async def remove(self, row: Invite) -> None:
        await self._session.delete(row)

    def _mine(self) -> Select[Invite]:
        return select(Invite).where(Invite.organisation_id == self._organisation)


class ArrivingRepository:
    """Sees every tenant: whoever signs in has yet to say whose they are."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def pending(self, email: str, now: datetime) -> Sequence[Invite]:
        """Oldest first."""
        statement = select(Invite).where(Invite.email == email, *_open(now))
        return (await self._session.scalars(statement.order_by(Invite.created_at))).all()

    async def accepted(self, users: Sequence[str]) -> set[str]:
        """Those of these people who came by an invite."""
        statement = select(Invite.user_id).where(Invite.user_id.in_(users))
        return {user for user in await self._session.scalars(statement) if user is not None}


def _open(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return Invite.accepted_at.is_(None), Invite.expires_at > now
