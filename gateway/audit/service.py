"""Writing the audit log: in the transaction of the change itself, chained to what came before."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.models import AuditEvent
from gateway.audit.repository import AuditRepository
from gateway.ids import new_id


@dataclass(frozen=True, slots=True)
class Actor:
    type: str  # "api_key" or "operator"
    id: str


class AuditLog:
    """Of one organisation. Two writers at once: one of them gets Conflict."""

    def __init__(self, session: AsyncSession, organisation: str, now: datetime) -> None:
        self._rows = AuditRepository(session, organisation)
        self._session = session
        self._organisation = organisation
        self._now = now

    async def add(
        self,
        kind: str,
        object_id: str,
        *,
        actor: Actor,
        project: str | None = None,
        change: dict[str, Any] | None = None,
    ) -> None:
        """``change`` holds no secret."""
        last = next(iter(await self._rows.newest_first(1)), None)
        facts = {
            "number": last.number + 1 if last else 1,
            "organisation_id": self._organisation,
            "project_id": project,
            "type": kind,
            "actor_type": actor.type,
            "actor_id": actor.id,
            "object_id": object_id,
            "change": change or {},
            "previous": last.hash if last else "",
        }
        event = AuditEvent(id=new_id("audit"), at=self._now, hash=digest(facts), **facts)
        self._rows.add(event)
        await self._session.flush()


def digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()
