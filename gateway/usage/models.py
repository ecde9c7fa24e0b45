"""The ledger: append-only events, what they add up to by quarter of an hour, prices, periods.

Money is integers: prices in pico-dollars per token, costs in nano-dollars. On Postgres events are
partitioned by day. An event carries the log it came from and the number of the transaction that
brought it (``batch``), so that a watermark for each log says exactly which events are added up.
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
        CheckConstraint("storage_pico >= 0", name="storage_pico"),
        Index(None, "base_model", "effective_from"),
        Index(None, "adapter_id", "effective_from"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    base_model: Mapped[str | None] = mapped_column(String(256))
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"))
    input_pico: Mapped[int] = mapped_column(BigInteger)  # per token that was not cached
    cached_input_pico: Mapped[int] = mapped_column(BigInteger)
    output_pico: Mapped[int] = mapped_column(BigInteger)
    storage_pico: Mapped[int] = mapped_column(BigInteger, default=0)  # per GiB and hour
    tier: Mapped[str] = mapped_column(String(16), default="default")
    effective_from: Mapped[datetime] = mapped_column(Utc)
    created_at: Mapped[datetime] = mapped_column(Utc)


class UsageEvent(Tenanted):
    """See ``gateway.usage.event``. A usage event's ``id`` is the request's.

    No foreign keys: an event that happened is recorded whatever became of its owner.
    """

    __tablename__ = "usage_event"
    __table_args__ = (
        CheckConstraint("prompt_tokens >= 0", name="prompt_tokens"),
        CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_tokens"),
        CheckConstraint("completion_tokens >= 0", name="completion_tokens"),
        CheckConstraint("(price_id IS NULL) = (cost_nano IS NULL)", name="priced"),
        CheckConstraint(
            "coalesce(cost_nano, 0) = input_nano + cached_nano + output_nano + storage_nano",
            name="cost",
        ),
        CheckConstraint("(kind = 'adjustment') = (corrects IS NOT NULL)", name="corrects"),
        Index(None, "project_id", "day"),
        Index(None, "organisation_id", "day", "started_at", "id"),  # as the request log reads it
        Index(None, "log", "batch"),
        Index(None, "corrects"),
        {"postgresql_partition_by": "RANGE (day)"},
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)  # UTC, of started_at
    slot: Mapped[datetime] = mapped_column(Utc)
    period: Mapped[date] = mapped_column(Date)
    kind: Mapped[str] = mapped_column(String(16))
    organisation_id: Mapped[str] = mapped_column(String(40))
    project_id: Mapped[str] = mapped_column(String(40))
    key_id: Mapped[str] = mapped_column(String(40))
    user_id: Mapped[str] = mapped_column(String(256))
    tier: Mapped[str] = mapped_column(String(16))
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
    storage_byte_hours: Mapped[int] = mapped_column(BigInteger)
    price_id: Mapped[str | None] = mapped_column(String(40))  # None: unpriced
    cost_nano: Mapped[int | None] = mapped_column(BigInteger)  # None: unpriced, never 0
    input_nano: Mapped[int] = mapped_column(BigInteger)
    cached_nano: Mapped[int] = mapped_column(BigInteger)
    output_nano: Mapped[int] = mapped_column(BigInteger)
    storage_nano: Mapped[int] = mapped_column(BigInteger)
    corrects: Mapped[str | None] = mapped_column(String(64))
    corrected_price: Mapped[str | None] = mapped_column(String(40))
    engine: Mapped[str] = mapped_column(String(128))
    boot: Mapped[str] = mapped_column(String(64))
    recovered: Mapped[bool]  # its gateway died; the counts are the engine's, or 0
    started_at: Mapped[datetime] = mapped_column(Utc)
    finished_at: Mapped[datetime] = mapped_column(Utc)
    first_ns: Mapped[int] = mapped_column(BigInteger, server_default="0")
    token_ns: Mapped[int] = mapped_column(BigInteger, server_default="0")
    log: Mapped[str] = mapped_column(String(40))
    batch: Mapped[int] = mapped_column(BigInteger)


class Summed:
    """What roll-ups add up: ``rollup_repository.SUMS``."""

    events: Mapped[int] = mapped_column(BigInteger)  # lines of the ledger, of any kind
    requests: Mapped[int] = mapped_column(BigInteger)
    unpriced: Mapped[int] = mapped_column(BigInteger)  # requests without a price so far
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    storage_byte_hours: Mapped[int] = mapped_column(BigInteger)
    input_nano: Mapped[int] = mapped_column(BigInteger)
    cached_nano: Mapped[int] = mapped_column(BigInteger)
    output_nano: Mapped[int] = mapped_column(BigInteger)
    storage_nano: Mapped[int] = mapped_column(BigInteger)


class UsageRollup(Summed, Tenanted):
    """Events of one quarter of an hour that agree in everything that is asked by, added up.

    Empty strings stand for what an event has not: a key cannot hold NULL.
    """

    __tablename__ = "usage_rollup"
    __table_args__ = (Index(None, "organisation_id", "slot"),)

    slot: Mapped[datetime] = mapped_column(Utc, primary_key=True)
    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    period: Mapped[date] = mapped_column(Date, primary_key=True)
    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    tier: Mapped[str] = mapped_column(String(16), primary_key=True)
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    base_model: Mapped[str] = mapped_column(String(256), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    endpoint: Mapped[str] = mapped_column(String(64), primary_key=True)
    price_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(String(40))


class UsageDay(Summed, Tenanted):
    """The roll-ups of a day of UTC added up, without keys, customers, prices and months: what a
    view over very many quarters of an hour reads instead of them. Several times, by grain: what a
    grain does not tell apart is "" in its rows. Those of one grain are of weeks."""

    __tablename__ = "usage_day"
    __table_args__ = (Index(None, "organisation_id", "grain", "day"),)

    grain: Mapped[str] = mapped_column(String(8), primary_key=True)  # see rollup_repository
    day: Mapped[datetime] = mapped_column(Utc, primary_key=True)  # or week: its first moment
    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tier: Mapped[str] = mapped_column(String(16), primary_key=True)
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    base_model: Mapped[str] = mapped_column(String(256), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    endpoint: Mapped[str] = mapped_column(String(64), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(String(40))


class UsagePace(Tenanted):
    """Requests of one quarter of an hour by how fast they were answered; see ``pace.py``."""

    __tablename__ = "usage_pace"
    __table_args__ = (Index(None, "organisation_id", "slot"),)

    slot: Mapped[datetime] = mapped_column(Utc, primary_key=True)
    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    organisation_id: Mapped[str] = mapped_column(String(40))
    requests: Mapped[int] = mapped_column(BigInteger)


class UsagePaceDay(Base):
    """The paces of a day of UTC, of all tenants together: for operators alone."""

    __tablename__ = "usage_pace_day"

    day: Mapped[datetime] = mapped_column(Utc, primary_key=True)  # its first moment
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    requests: Mapped[int] = mapped_column(BigInteger)


class LogPosition(Base):
    """Everything before (segment, offset) of this log is in the database."""

    __tablename__ = "log_position"

    log: Mapped[str] = mapped_column(String(40), primary_key=True)
    segment: Mapped[int] = mapped_column(BigInteger)
    offset: Mapped[int] = mapped_column(BigInteger)  # bytes
    batch: Mapped[int] = mapped_column(BigInteger, default=0)  # of the last transaction


class RollupWatermark(Base):
    """Events of this log up to and with this batch are in the roll-ups, and no others."""

    __tablename__ = "rollup_watermark"

    log: Mapped[str] = mapped_column(String(40), primary_key=True)
    batch: Mapped[int] = mapped_column(BigInteger)


class ClosedPeriod(Base):
    """A month that was billed: no event enters it any more, and what it held is kept here."""

    __tablename__ = "closed_period"

    period: Mapped[date] = mapped_column(Date, primary_key=True)  # its first day
    closed_at: Mapped[datetime] = mapped_column(Utc)
    events: Mapped[int] = mapped_column(BigInteger)
    cost_nano: Mapped[int] = mapped_column(BigInteger)


class DroppedUsage(Base):
    """What a day held, by the month it was billed in, when its events went."""

    __tablename__ = "usage_dropped"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    period: Mapped[date] = mapped_column(Date, primary_key=True)
    events: Mapped[int] = mapped_column(BigInteger)
    cost_nano: Mapped[int] = mapped_column(BigInteger)
    dropped_at: Mapped[datetime] = mapped_column(Utc)


class DroppedCharge(Tenanted):
    """What a bill tells of a day whose events went, see ``gateway.usage.charges``."""

    __tablename__ = "usage_dropped_charge"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    period: Mapped[date] = mapped_column(Date, primary_key=True)
    organisation_id: Mapped[str] = mapped_column(String(40))
    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    base_model: Mapped[str] = mapped_column(String(256), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tier: Mapped[str] = mapped_column(String(16), primary_key=True)
    price_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    storage_byte_hours: Mapped[int] = mapped_column(BigInteger)
    input_nano: Mapped[int] = mapped_column(BigInteger)
    cached_nano: Mapped[int] = mapped_column(BigInteger)
    output_nano: Mapped[int] = mapped_column(BigInteger)
    storage_nano: Mapped[int] = mapped_column(BigInteger)
