"""Text of requests, for projects that want it kept. Apart from the ledger, which knows none."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Tenanted, Utc


class RequestText(Tenanted):
    __tablename__ = "request_text"
    __table_args__ = (Index(None, "project_id", "user_id"), Index(None, "expires_at"))

    request_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    user_id: Mapped[str] = mapped_column(String(256))  # the tenant's own customer, or ""
    prompt: Mapped[str] = mapped_column(Text)  # as the model read it
    answer: Mapped[str] = mapped_column(Text)
    ended_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime] = mapped_column(Utc)  # then it is deleted
