"""Rows as OpenAI's administration API shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gateway.audit.models import AuditEvent
from gateway.errors import InvalidRequest
from gateway.identity.models import (
    ApiKey,
    Invite,
    Project,
    ProjectUser,
    Role,
    ServiceAccount,
    User,
)

Json = dict[str, Any]
NO_LIMIT = 2**31 - 1  # how a rate that is not limited is shown
NANO_PER_CENT = 10**7


def seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def page(
    rows: Sequence[Json],
    after: str | None,
    limit: int,
    *,
    before: str | None = None,
    order: str = "asc",
) -> Json:
    """At most ``limit`` rows behind ``after``, or before ``before``. Raises InvalidRequest."""
    if not 1 <= limit <= 100:
        raise InvalidRequest(f"limit {limit}: from 1 to 100", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order {order[:16]!r}: asc or desc", param="order")
    ordered = list(rows if order == "asc" else reversed(rows))
    ids = [row["id"] for row in ordered]
    for name, cursor in (("after", after), ("before", before)):
        if cursor is not None and cursor not in ids:
            raise InvalidRequest(f"{name} names no object of this list", param=name)
    begin = ids.index(after) + 1 if after is not None else 0
    end = ids.index(before) if before is not None else len(ordered)
    found = ordered[begin:end]
    data = found[:limit] if before is None else found[-limit:]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }


def project(row: Project) -> Json:
    return {
        "id": row.id,
        "object": "organization.project",
        "name": row.name,
        "created_at": seconds(row.created_at),
        "archived_at": seconds(row.archived_at),
        "status": "archived" if row.archived_at else "active",
    }


def key(row: ApiKey, accounts: dict[str, ServiceAccount]) -> Json:
    account = accounts.get(row.service_account_id or "")
    owner: Json = {"type": None}
    if account is not None:
        facts = {"id": account.id, "name": account.name, "role": account.role}
        facts["created_at"] = seconds(account.created_at)  # type: ignore[assignment]
        owner = {"type": "service_account", "service_account": facts}
    return {
        "id": row.id,
        "object": "organization.project.api_key",
        "name": row.name,
        "redacted_value": f"sk-...{row.last4}",
        "created_at": seconds(row.created_at),
        "expires_at": seconds(row.expires_at),
        "last_used_at": None,
        "owner": owner,
        "owner_project_access": "active",
    }


def admin_key(row: ApiKey, person: User | None) -> Json:
    return {
        "id": row.id,
        "object": "organization.admin_api_key",
        "name": row.name,
        "redacted_value": f"sk-admin-...{row.last4}",
        "created_at": seconds(row.created_at),
        "expires_at": seconds(row.expires_at),
        "last_used_at": None,
        "owner": _owner(row, person),
    }


def _owner(row: ApiKey, person: User | None) -> Json:
    if person is None:
        return {
            "type": "service_account",
            "object": "organization.service_account",
            "id": row.organisation_id,
            "role": row.role or Role.OWNER,
        }
    return {
        "type": "user",
        "object": "organization.user",
        "id": person.id,
        "name": person.name,
        "role": person.role,
        "created_at": seconds(person.created_at),
    }


def user(row: User) -> Json:
    return {
        "id": row.id,
        "object": "organization.user",
        "name": row.name,
        "email": row.email,
        "role": row.role,
        "added_at": seconds(row.created_at),
        "created": seconds(row.created_at),
        "user": {"id": row.id, "object": "user", "name": row.name, "email": row.email},
    }


def invite(row: Invite, now: datetime) -> Json:
    status = "accepted" if row.accepted_at else "expired" if row.expires_at <= now else "pending"
    return {
        "id": row.id,
        "object": "organization.invite",
        "email": row.email,
        "role": row.role,
        "status": status,
        "created_at": seconds(row.created_at),
        "invited_at": seconds(row.created_at),
        "expires_at": seconds(row.expires_at),
        "accepted_at": seconds(row.accepted_at) if row.accepted_at else None,
        "projects": [{"id": project, "role": role} for project, role in row.projects.items()],
    }


def member(row: ProjectUser, person: User) -> Json:
    return {
        "id": person.id,
        "object": "organization.project.user",
        "name": person.name,
        "email": person.email,
        "role": row.role,
        "added_at": seconds(row.created_at),
    }


def account(row: ServiceAccount) -> Json:
    return {
        "id": row.id,
        "object": "organization.project.service_account",
        "name": row.name,
        "role": row.role,
        "created_at": seconds(row.created_at),
    }


def audit(row: AuditEvent) -> Json:
    return {
        "id": row.id,
        "type": row.type,
        "effective_at": seconds(row.at),
        "project": {"id": row.project_id} if row.project_id else None,
        "actor": _actor(row),
        row.type: {"id": row.object_id, **row.change},
    }


def _actor(row: AuditEvent) -> Json:
    """Somebody at the dashboard is a session, as OpenAI calls it; commands have no key either."""
    if row.actor_type == "login":
        return {"type": "session", "session": {"user": {"id": row.actor_id, "email": ""}}}
    return {"type": "api_key", "api_key": {"id": row.actor_id}}
