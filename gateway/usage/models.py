"""The ledger: append-only usage events, effective-dated prices, and how far each log was read.

Money is integers: prices in pico-dollars per token, costs in nano-dollars.
"""

from datetime import date, datetime

from sqlalchemy import BigInteger, CheckConstraint, Date, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Base, Tenanted, Utc


class Price(Base):
    """What one model, or one adapter, costs from a time on. Rows are never changed."""

    __tablename__ = "price"
    __table_args__ = (
        CheckConstraint("(base_model IS NULL) <> (adapter_id IS NULL)", name="subject"),
        CheckConstraint("input_pico >= 0", name="input_pico"),
        CheckConstraint("cached_input_pico >= 0", name="cached_input_pico"),
        CheckConstraint("output_pico >= 0", name="output_pico"),
        Index(None, "base_model", "effective_from"),
        Index(None, "adapter_id", "effective_from"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    base_model: Mapped[str | None] = mapped_column(String(256))
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"))
    input_pico: Mapped[int] = mapped_column(BigInteger)  # per token that was not cached
    cached_input_pico: Mapped[int] = mapped_column(BigInteger)
    output_pico: Mapped[int] = mapped_column(BigInteger)
    effective_from: Mapped[datetime] = mapped_column(Utc)
    created_at: Mapped[datetime] = mapped_column(Utc)


class UsageEvent(Tenanted):
    """One request, once. ``id`` is the request's; ``day`` is ready to partition by.

    No foreign keys: an event that happened is recorded whatever became of its owner.
    """

    __tablename__ = "usage_event"
    __table_args__ = (
        CheckConstraint("prompt_tokens >= 0", name="prompt_tokens"),
        CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_tokens"),
        CheckConstraint("completion_tokens >= 0", name="completion_tokens"),
        CheckConstraint("(price_id IS NULL) = (cost_nano IS NULL)", name="priced"),
        Index(None, "project_id", "day"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)  # UTC, of started_at
    organisation_id: Mapped[str] = mapped_column(String(40))
    project_id: Mapped[str] = mapped_column(String(40))
    key_id: Mapped[str] = mapped_column(String(40))
    model: Mapped[str] = mapped_column(String(256))  # public name
    base_model: Mapped[str] = mapped_column(String(256))
    adapter_id: Mapped[str | None] = mapped_column(String(40))
    digest: Mapped[str | None] = mapped_column(String(80))
    endpoint: Mapped[str] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    finish_reason: Mapped[str | None] = mapped_column(String(32))
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)  # part of prompt_tokens
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    price_id: Mapped[str | None] = mapped_column(String(40))  # None: unpriced
    cost_nano: Mapped[int | None] = mapped_column(BigInteger)  # None: unpriced, never 0
    engine: Mapped[str] = mapped_column(String(128))
    boot: Mapped[str] = mapped_column(String(64))
    recovered: Mapped[bool]  # its gateway died; the counts are the engine's, or 0
    started_at: Mapped[datetime] = mapped_column(Utc)
    finished_at: Mapped[datetime] = mapped_column(Utc)


class LogPosition(Base):
    """Everything before (segment, offset) of this log is in the database."""

    __tablename__ = "log_position"

    log: Mapped[str] = mapped_column(String(40), primary_key=True)
    segment: Mapped[int] = mapped_column(BigInteger)
    offset: Mapped[int] = mapped_column(BigInteger)  # bytes
