"""Queries over what was refused: of one organisation, and of the keeper, who sees every tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, and_, case, delete, func, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import is_postgres
from gateway.refusals.models import Refusal
from gateway.refusals.tally import Count, Counted, KindOfRefusal

CUSTOMER = "customer"  # the level of limits whose subject names a tenant's customer


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRefusals:
    """Of those that began in [start, end); "" and 0 mean all. Fields are the columns."""

    start: datetime
    end: datetime
    project_id: str = ""
    key_id: str = ""
    model: str = ""
    endpoint: str = ""
    status: int = 0
    code: str = ""

    def conditions(self) -> list[ColumnElement[bool]]:
        names = ("project_id", "key_id", "model", "endpoint", "status", "code")
        given = [(name, value) for name in names if (value := getattr(self, name))]
        return [getattr(Refusal, name) == value for name, value in given]


@dataclass(frozen=True, slots=True)
class Throttled:
    """One key at one limit."""

    project: str
    key: str  # "" for several
    level: str
    subject: str
    limited: str
    times: int
    last_at: datetime
    wait_ms: int


class RefusalRepository:
    """Every statement names the organisation."""

    def __init__(self, session: AsyncSession, organisation: str) -> None:
        self._session = session
        self._mine: ColumnElement[bool] = Refusal.organisation_id == organisation

    async def newest_first(
        self, most: int, wanted: WantedRefusals, *, after: tuple[datetime, str] | None = None
    ) -> Sequence[Refusal]:
        """``after``: the time and id of the last request, or refusal, of the page before."""
        order = (Refusal.first_at, Refusal.id)
        statement = (
            self._select()
            .where(Refusal.first_at >= wanted.start, Refusal.first_at < wanted.end)
            .where(*wanted.conditions())
            .order_by(*(column.desc() for column in order))
            .limit(most)
        )
        if after is not None:
            statement = statement.where(tuple_(*order) < tuple_(*after))
        return (await self._session.scalars(statement)).all()

    async def one(self, request: str) -> Refusal | None:
        """The row whose last request has this id. None also for another organisation's."""
        statement = self._select().where(Refusal.request_id == request)
        return (await self._session.scalars(statement.limit(1))).one_or_none()

    async def throttled(self, since: datetime) -> Sequence[Throttled]:
        """By which limits, last refused first."""
        keys = (Refusal.project_id, Refusal.key_id, Refusal.level, Refusal.subject, Refusal.limited)
        last = func.max(Refusal.last_at)
        statement = (
            select(*keys, func.sum(Refusal.times), last, func.max(Refusal.wait_ms))
            .where(self._mine, Refusal.level != "", Refusal.last_at >= since)
            .where(Refusal.first_at >= since.replace(second=0, microsecond=0))
            .group_by(*keys)
            .order_by(last.desc())
        )
        found = await self._session.execute(statement)
        return [
            Throttled(project, key, level, subject, limited, int(times), _aware(at), int(wait))
            for project, key, level, subject, limited, times, at, wait in found
        ]

    async def erase(self, project: str, customer: str | None = None) -> int:
        """All of a project, or what names one of its customers. Returns how many rows."""
        theirs = [self._mine, Refusal.project_id == project]
        if customer is not None:
            theirs += [Refusal.level == CUSTOMER, Refusal.subject == f"{project}/{customer}"]
        count = select(func.count()).select_from(Refusal).where(*theirs)
        found = await self._session.scalar(count)
        await self._session.execute(delete(Refusal).where(*theirs))
        return int(found or 0)

    def _select(self) -> Select[Any]:
        return select(Refusal).where(self._mine)


class KeepingRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, counted: Counted) -> None:
        """To rows that other gateways may have begun; in one order, so that none waits in turn."""
        insert = postgresql.insert if is_postgres(self._session) else sqlite.insert
        made, row = insert(Refusal), Refusal
        later = made.excluded.last_at >= row.last_at
        told = {
            name: case((later, made.excluded[name]), else_=getattr(row, name))
            for name in ("last_at", "wait_ms", "request_id")
        }
        statement = made.on_conflict_do_update(
            index_elements=["id"], set_={"times": row.times + made.excluded.times, **told}
        )
        rows = sorted((_row(*each) for each in counted), key=lambda each: str(each["id"]))
        await self._session.execute(statement, rows)

    async def forget(self, before: datetime, most: int) -> int:
        """Returns how many rows went."""
        some = select(Refusal.id).where(Refusal.first_at < before).limit(most)
        return await self._delete((await self._session.scalars(some)).all())

    async def trim(self, project: str, most: int, at_once: int) -> int:
        """The newest ``most`` rows of a project stay. Returns how many others went."""
        order = (Refusal.first_at.desc(), Refusal.id.desc())
        mine = Refusal.project_id == project
        edge = select(Refusal.first_at, Refusal.id).where(mine).order_by(*order)
        found = (await self._session.execute(edge.offset(most).limit(1))).one_or_none()
        if found is None:
            return 0
        at, row = found
        older = or_(Refusal.first_at < at, and_(Refusal.first_at == at, Refusal.id <= row))
        some = select(Refusal.id).where(mine, older).limit(at_once)
        return await self._delete((await self._session.scalars(some)).all())

    async def _delete(self, ids: Sequence[str]) -> int:
        if ids:
            await self._session.execute(delete(Refusal).where(Refusal.id.in_(ids)))
        return len(ids)


def _row(kind: KindOfRefusal, count: Count) -> dict[str, Any]:
    return {
        "id": identity(kind),
        "organisation_id": kind.organisation,
        "project_id": kind.project,
        "key_id": kind.key,
        "status": kind.status,
        "code": kind.code,
        "param": kind.param,
        "model": kind.model,
        "endpoint": kind.endpoint,
        "level": kind.level,
        "subject": kind.subject,
        "limited": kind.limited,
        "times": count.times,
        "first_at": datetime.fromtimestamp(count.first, UTC),
        "last_at": datetime.fromtimestamp(count.last, UTC),
        "wait_ms": count.wait_ms,
        "request_id": count.request,
    }


def identity(kind: KindOfRefusal) -> str:
    """The same for the same kind in the same minute, at whichever gateway."""
    told = blake2b(orjson.dumps(kind), digest_size=16).hexdigest()
    return f"refusal_{told}"


def _aware(time: datetime | str) -> datetime:
    """SQLite gives computed times as text."""
    parsed = datetime.fromisoformat(time) if isinstance(time, str) else time
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
