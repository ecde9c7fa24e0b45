"""Files of a project: what a tenant sent for a batch, and what a batch wrote for it."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Tenanted, Utc


class Purpose(StrEnum):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    USER_DATA = "user_data"


class StoredFile(Tenanted):
    """The bytes are in the file store, under the id. They never change."""

    __tablename__ = "file"
    __table_args__ = (
        CheckConstraint("purpose IN ('batch', 'batch_output', 'user_data')", name="purpose"),
        CheckConstraint("nbytes >= 0", name="nbytes"),
        Index(None, "project_id", "created_at"),
        Index(None, "expires_at"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    filename: Mapped[str] = mapped_column(String(256))
    purpose: Mapped[str] = mapped_column(String(16))
    nbytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime] = mapped_column(Utc)  # then it is deleted
