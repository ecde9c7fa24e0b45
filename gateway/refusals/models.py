"""Requests that were refused: how many of a kind in a minute, and never what they said."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Tenanted, Utc


class Refusal(Tenanted):
    """See ``tally.py``. ``id`` is made of the minute and the kind, so gateways add to one row.

    No foreign keys: what was refused is kept whatever became of its owner.
    """

    __tablename__ = "refusal"
    __table_args__ = (
        CheckConstraint("times > 0", name="times"),
        Index(None, "organisation_id", "first_at", "id"),  # as the request log reads it
        Index(None, "project_id", "first_at"),
        Index(None, "first_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(String(40))
    project_id: Mapped[str] = mapped_column(String(40))
    key_id: Mapped[str] = mapped_column(String(40))  # "" where kinds were too many: of any key
    status: Mapped[int]
    code: Mapped[str] = mapped_column(String(64))
    param: Mapped[str] = mapped_column(String(64))  # the field at fault, or ""
    model: Mapped[str] = mapped_column(String(256))  # as it was asked for, or ""
    endpoint: Mapped[str] = mapped_column(String(64))
    level: Mapped[str] = mapped_column(String(16))  # of the limit that bound, or ""
    subject: Mapped[str] = mapped_column(String(512))  # whose limit it was
    limited: Mapped[str] = mapped_column(String(320))  # on what: "requests per minute"
    times: Mapped[int] = mapped_column(BigInteger)
    first_at: Mapped[datetime] = mapped_column(Utc)
    last_at: Mapped[datetime] = mapped_column(Utc)
    wait_ms: Mapped[int] = mapped_column(BigInteger)  # as the last was told; 0: not at all
    request_id: Mapped[str] = mapped_column(String(64))  # of the last
