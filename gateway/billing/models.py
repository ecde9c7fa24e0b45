"""What goes to billing systems: fixed when it is written down, and then sent until it is taken.

A delivery holds what a range of the ledger's batches came to for one meter of one customer. The
watermark moves with it, so every event of the ledger is in exactly one delivery of each sink.
"""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Base, Utc


class SinkWatermark(Base):
    """Events of this log up to and with this batch are in deliveries of the sink.

    Log "" says that the sink is known: what the ledger held before is not sent.
    """

    __tablename__ = "sink_watermark"

    sink: Mapped[str] = mapped_column(String(40), primary_key=True)
    log: Mapped[str] = mapped_column(String(40), primary_key=True)
    batch: Mapped[int] = mapped_column(BigInteger)


class SinkCustomer(Base):
    """What a sink calls an organisation."""

    __tablename__ = "sink_customer"

    sink: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"), primary_key=True)
    customer: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(Utc)


class SinkDelivery(Base):
    __tablename__ = "sink_delivery"
    __table_args__ = (
        CheckConstraint(
            "state IN ('held', 'pending', 'taken', 'refused', 'uncertain')", name="state"
        ),
        Index(None, "sink", "state", "next_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)  # by which a sink knows it again
    sink: Mapped[str] = mapped_column(String(40))
    organisation_id: Mapped[str] = mapped_column(String(40))
    meter: Mapped[str] = mapped_column(String(100))
    at: Mapped[datetime] = mapped_column(Utc)  # when it was used, as the sink is told
    quantity: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[str] = mapped_column(Text)  # JSON: what else a payload says
    customer: Mapped[str] = mapped_column(String(128))  # "" while it is held for want of one
    payload: Mapped[str] = mapped_column(Text)  # the bytes that are sent; "" while it is held
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int]
    doubt_since: Mapped[datetime | None] = mapped_column(Utc)  # it may have been taken from then on
    next_at: Mapped[datetime] = mapped_column(Utc)
    taken_at: Mapped[datetime | None] = mapped_column(Utc)
    detail: Mapped[str] = mapped_column(String(200))  # what the sink said last
