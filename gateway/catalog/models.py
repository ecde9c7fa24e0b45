"""Adapters as a project owns them: a name, and immutable numbered versions of it."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Tenanted, Utc


class AdapterState(StrEnum):
    READY = "ready"
    RETIRED = "retired"


class Adapter(Tenanted):
    """One version. The bytes are in the adapter store, under the digest."""

    __tablename__ = "adapter"
    __table_args__ = (
        UniqueConstraint("project_id", "name", "version"),
        CheckConstraint("version > 0", name="version"),
        CheckConstraint("rank > 0", name="rank"),
        CheckConstraint("state IN ('ready', 'retired')", name="state"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    digest: Mapped[str] = mapped_column(String(80))
    rank: Mapped[int]  # the largest of its modules
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Utc)
    retired_at: Mapped[datetime | None] = mapped_column(Utc)
