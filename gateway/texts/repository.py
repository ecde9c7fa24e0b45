"""Queries over kept texts: of one organisation, and of the keeper, who sees every tenant."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.identity.models import Project
from gateway.texts.models import RequestText


class TextRepository:
    """Every statement names the organisation."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._mine: ColumnElement[bool] = RequestText.organisation_id == organisation

    async def one(self, request: str, now: datetime) -> RequestText | None:
        """None also for what has had its time."""
        statement = select(RequestText).where(
            self._mine, RequestText.request_id == request, RequestText.expires_at > now
        )
        return (await self._session.scalars(statement)).one_or_none()

    async def counts(self) -> dict[str, int]:
        """By project."""
        statement = (
            select(RequestText.project_id, func.count())
            .where(self._mine)
            .group_by(RequestText.project_id)
        )
        found = await self._session.execute(statement)
        return {project: int(number) for project, number in found}

    async def erase(self, project: str, customer: str | None = None) -> int:
        """All of a project, or of one of its customers. Returns how many there were."""
        theirs = [self._mine, RequestText.project_id == project]
        if customer is not None:
            theirs.append(RequestText.user_id == customer)
        count = select(func.count()).select_from(RequestText).where(*theirs)
        found = await self._session.scalar(count)
        await self._session.execute(delete(RequestText).where(*theirs))
        return int(found or 0)


class KeepingRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def days(self, projects: Collection[str]) -> dict[str, int]:
        """Of the projects that want texts kept, for how long."""
        statement = select(Project.id, Project.text_days).where(
            Project.id.in_(projects), Project.text_days.is_not(None)
        )
        return {id: int(days or 0) for id, days in await self._session.execute(statement)}

    async def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Of two under one id the later stays: a line of a batch may be answered again."""
        insert = postgresql.insert if is_postgres(self._session) else sqlite.insert
        made = insert(RequestText)
        said = ("prompt", "answer", "ended_at", "expires_at")
        await self._session.execute(
            made.on_conflict_do_update(
                index_elements=["request_id"],
                set_={name: made.excluded[name] for name in said},
                where=RequestText.project_id == made.excluded.project_id,
            ),
            rows,
        )

    async def forget_expired(self, now: datetime, most: int) -> int:
        """Returns how many."""
        some = select(RequestText.request_id).where(RequestText.expires_at <= now).limit(most)
        gone = (await self._session.scalars(some)).all()
        if gone:
            await self._session.execute(delete(RequestText).where(RequestText.request_id.in_(gone)))
        return len(gone)
