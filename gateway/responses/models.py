"""Responses that were kept, so that others can go on from them."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db import Tenanted, Utc


class StoredResponse(Tenanted):
    """``conversation`` is whole, so that deleting one response leaves those after it readable."""

    __tablename__ = "response"
    __table_args__ = (
        Index(None, "project_id", "created_at"),
        Index(None, "expires_at"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    body: Mapped[str] = mapped_column(Text)  # JSON: as the client got it
    items: Mapped[str] = mapped_column(Text)  # JSON: its own input
    conversation: Mapped[str] = mapped_column(Text)  # JSON: what came before, its input and output
    created_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime] = mapped_column(Utc)  # then it is deleted


class ResponseRetention(Tenanted):
    """How long a project's responses are kept, where that is not the server's own."""

    __tablename__ = "response_retention"
    __table_args__ = (CheckConstraint("days >= 0", name="days"),)

    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    days: Mapped[int]  # 0: none is kept
