"""Changes of adapters in their organisation's audit log, each in its own transaction."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.adapter_api.callers import Caller
from gateway.audit.service import Actor, AuditLog
from gateway.catalog.models import Adapter, AdapterAlias
from gateway.db import across_projects


async def note(
    session: AsyncSession, who: Caller, kind: str, object_id: str, **change: Any
) -> None:
    """Call it last: what was changed before it is written first."""
    await session.flush()
    log = AuditLog(session, who.principal.organisation, datetime.now(UTC))
    actor = Actor("api_key", who.principal.key)
    async with across_projects(session):
        await log.add(kind, object_id, actor=actor, project=who.project, change=change)


async def note_versions(
    session: AsyncSession, who: Caller, kind: str, rows: Iterable[Adapter], **change: Any
) -> None:
    for row in rows:
        about = {"name": row.name, "version": row.version}
        await note(session, who, kind, row.id, **about, **change)


async def note_alias(session: AsyncSession, who: Caller, row: AdapterAlias) -> None:
    await note(
        session,
        who,
        "adapter_alias.updated",
        row.name,
        adapter=row.adapter_id,
        canary=row.canary_id,
        percent=row.canary_percent,
    )
