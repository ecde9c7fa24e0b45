"""What may be used: rates, budgets, plans and credits. A row that is not there limits nothing.

A limit belongs to a subject of some level: an organisation, a project, a key, an end customer or
a tag of a project. ``model`` narrows it to one public model name; "" is all of them together.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Base, Utc

MOST_NANO = 9 * 10**15  # 9 million dollars: what a double counts exactly, for Redis' Lua
RATES = (
    "requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day", "concurrency",
)  # fmt: skip


class Level(StrEnum):
    ORGANISATION = "organisation"
    PROJECT = "project"
    KEY = "key"
    CUSTOMER = "customer"  # subject: project id, "/", what ``safety_identifier`` or ``user`` says
    TAG = "tag"  # subject: project id, "/", name=value of ``metadata``
    PLAN = "plan"  # subject: plan id; holds for each organisation on the plan


class Exhaust(StrEnum):
    """What becomes of streams that run when a budget is used up."""

    CUT = "cut"
    FINISH = "finish"


_LEVELS = f"level IN ({', '.join(repr(str(level)) for level in Level)})"


class Quota(Base):
    """Rates of one subject. None: not limited here."""

    __tablename__ = "quota"
    __table_args__ = (
        UniqueConstraint("level", "subject", "model"),
        CheckConstraint(_LEVELS, name="level"),
        *(CheckConstraint(f"{name} >= 0", name=name) for name in RATES),
        Index(None, "organisation_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str | None] = mapped_column(String(40))  # None: of a plan
    level: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(String(320))
    model: Mapped[str] = mapped_column(String(256), default="")
    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    requests_per_day: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    concurrency: Mapped[int | None] = mapped_column(BigInteger)
    updated_at: Mapped[datetime] = mapped_column(Utc)


class Budget(Base):
    """Money that a subject may spend in each calendar day or month of a time zone."""

    __tablename__ = "budget"
    __table_args__ = (
        UniqueConstraint("level", "subject", "model", "period"),
        CheckConstraint(_LEVELS, name="level"),
        CheckConstraint("period IN ('day', 'month')", name="period"),
        CheckConstraint("on_exhaust IN ('cut', 'finish')", name="on_exhaust"),
        CheckConstraint(f"amount_nano BETWEEN 0 AND {MOST_NANO}", name="amount_nano"),
        Index(None, "organisation_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str | None] = mapped_column(String(40))
    level: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(String(320))
    model: Mapped[str] = mapped_column(String(256), default="")
    period: Mapped[str] = mapped_column(String(8))
    time_zone: Mapped[str] = mapped_column(String(64))
    amount_nano: Mapped[int] = mapped_column(BigInteger)
    on_exhaust: Mapped[str] = mapped_column(String(8))
    updated_at: Mapped[datetime] = mapped_column(Utc)


class Plan(Base):
    """A name for quotas and budgets that many organisations share."""

    __tablename__ = "plan"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    weight: Mapped[int | None]  # of each project of an organisation on it; None: 1
    created_at: Mapped[datetime] = mapped_column(Utc)


class Credit(Base):
    """Money paid in advance. What is not used by ``expires_at`` lapses; rows are never changed
    but for that."""

    __tablename__ = "credit"
    __table_args__ = (
        CheckConstraint(f"amount_nano BETWEEN 1 AND {MOST_NANO}", name="amount_nano"),
        CheckConstraint("lapsed_nano BETWEEN 0 AND amount_nano", name="lapsed_nano"),
        Index(None, "organisation_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    amount_nano: Mapped[int] = mapped_column(BigInteger)
    note: Mapped[str] = mapped_column(String(256))
    granted_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime | None] = mapped_column(Utc)
    lapsed_nano: Mapped[int | None] = mapped_column(BigInteger)  # None: has not expired yet


class SpendAlert(Base):
    """Tell somebody once a month when so much was spent."""

    __tablename__ = "spend_alert"
    __table_args__ = (
        CheckConstraint(f"threshold_nano BETWEEN 1 AND {MOST_NANO}", name="threshold_nano"),
        Index(None, "organisation_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("project.id"))  # None: all of them
    threshold_nano: Mapped[int] = mapped_column(BigInteger)
    recipients: Mapped[str] = mapped_column(String(2048))  # e-mail addresses, one a line
    subject_prefix: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(Utc)


class AlertDelivery(Base):
    """One alert of one month on its way; the body is fixed before it is sent first."""

    __tablename__ = "alert_delivery"
    __table_args__ = (UniqueConstraint("alert_id", "period", "threshold_nano"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    alert_id: Mapped[str] = mapped_column(ForeignKey("spend_alert.id", ondelete="CASCADE"))
    period: Mapped[str] = mapped_column(String(16))  # 2026-12
    threshold_nano: Mapped[int] = mapped_column(BigInteger)  # as it was then
    body: Mapped[str] = mapped_column(String(4096))  # JSON
    attempts: Mapped[int]
    next_at: Mapped[datetime] = mapped_column(Utc)
    delivered_at: Mapped[datetime | None] = mapped_column(Utc)
