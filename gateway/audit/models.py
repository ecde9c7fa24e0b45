"""The audit log: what was changed, by whom, in order. Append-only, and chained by hashes.

The database refuses to change or delete a row (a trigger does), and each row's hash covers the
one before it, so that a gap or a change made behind the database's back shows.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Base, Utc


class AuditEvent(Base):
    """One change, in OpenAI's words: ``api_key.created``, ``rate_limit.updated``…"""

    __tablename__ = "audit_event"
    __table_args__ = (Index(None, "organisation_id", "number", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(String(40))
    number: Mapped[int] = mapped_column(BigInteger)  # 1, 2, 3… in its organisation
    project_id: Mapped[str | None] = mapped_column(String(40))
    at: Mapped[datetime] = mapped_column(Utc)
    type: Mapped[str] = mapped_column(String(64))
    actor_type: Mapped[str] = mapped_column(String(16))  # "api_key" or "operator"
    actor_id: Mapped[str] = mapped_column(String(64))
    object_id: Mapped[str] = mapped_column(String(256))
    change: Mapped[dict[str, Any]] = mapped_column(JSON)  # never a secret
    previous: Mapped[str] = mapped_column(String(64))  # hash of the row before; "" for the first
    hash: Mapped[str] = mapped_column(String(64))
