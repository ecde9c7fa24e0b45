"""Batches: a file of requests answered within a day, and its lines until they are written out."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Base, Tenanted, Utc


class BatchState(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"  # the input file does not hold what it should; ``errors`` says where
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN = (
    BatchState.VALIDATING,
    BatchState.IN_PROGRESS,
    BatchState.FINALIZING,
    BatchState.CANCELLING,
)
_STATES = f"state IN ({', '.join(repr(str(state)) for state in BatchState)})"


class Batch(Tenanted):
    """``owner`` is the one gateway that works on it, until ``held_until`` at least.

    Whoever takes it raises ``fence``, and nothing is written for a batch under an older one.
    """

    __tablename__ = "batch"
    __table_args__ = (
        CheckConstraint(_STATES, name="state"),
        Index(None, "project_id", "created_at"),
        Index(None, "state", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    key_id: Mapped[str] = mapped_column(String(40))  # in whose name its lines are asked
    endpoint: Mapped[str] = mapped_column(String(64))
    completion_window: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    input_file: Mapped[str] = mapped_column(String(48))
    output_file: Mapped[str | None] = mapped_column(String(48))
    error_file: Mapped[str | None] = mapped_column(String(48))
    output_seconds: Mapped[int | None]  # how long its files are kept, where the client said
    labels: Mapped[str | None] = mapped_column(Text)  # JSON: the client's metadata
    errors: Mapped[str | None] = mapped_column(Text)  # JSON: why the input was refused
    model: Mapped[str | None] = mapped_column(String(256))  # public name, where all lines agree
    total: Mapped[int] = mapped_column(default=0)  # lines
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime] = mapped_column(Utc)
    in_progress_at: Mapped[datetime | None] = mapped_column(Utc)
    finalizing_at: Mapped[datetime | None] = mapped_column(Utc)
    cancelling_at: Mapped[datetime | None] = mapped_column(Utc)
    ended_at: Mapped[datetime | None] = mapped_column(Utc)
    owner: Mapped[str | None] = mapped_column(String(40))
    held_until: Mapped[datetime | None] = mapped_column(Utc)
    fence: Mapped[int] = mapped_column(default=0)


class BatchLine(Base):
    """A line that was begun. Its answer is written together with its bill, once."""

    __tablename__ = "batch_line"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True)  # of the input file, from 1
    request: Mapped[str] = mapped_column(String(40))  # req_…, also of its event in the ledger
    begun_at: Mapped[datetime] = mapped_column(Utc)  # first, whatever became of that
    attempts: Mapped[int]
    answer: Mapped[str | None] = mapped_column(Text)  # a line of the output or the error file
    failed: Mapped[bool]
