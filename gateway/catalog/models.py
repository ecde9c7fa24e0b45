"""Adapters as a project owns them: a name, and immutable numbered versions of it.

An alias is a name that can be moved from version to version. An upload is a version in the making.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
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
    ends_at: Mapped[datetime | None] = mapped_column(Utc)  # of what runs on it; None: by itself
    nbytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # JSON: what was accepted, and the canary's. Long, and read by who asks for it alone.
    report: Mapped[str | None] = mapped_column(Text, deferred=True)
    invocation: Mapped[str | None] = mapped_column(Text)  # JSON: the tokens that invoke an aLoRA
    pinned: Mapped[bool] = mapped_column(server_default=false())  # kept close to the engines
    base_fingerprint: Mapped[str] = mapped_column(String(80), server_default="")  # "": the first


class AdapterAlias(Tenanted):
    __tablename__ = "adapter_alias"
    __table_args__ = (CheckConstraint("canary_percent BETWEEN 0 AND 100", name="canary_percent"),)

    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapter.id"))
    canary_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"))
    canary_percent: Mapped[int]  # of the traffic, by a hash of who asks
    previous_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"))  # for a rollback
    changed_at: Mapped[datetime] = mapped_column(Utc)


class AdapterGrant(Tenanted):
    """Another project may use this project's adapter of a name, all its versions."""

    __tablename__ = "adapter_grant"

    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    grantee_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(Utc)


class UploadState(StrEnum):
    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"  # a version of its name; adapter_id says which
    FAILED = "failed"  # detail says why


class AdapterUpload(Tenanted):
    __tablename__ = "adapter_upload"
    __table_args__ = (
        CheckConstraint("state IN ('uploading', 'validating', 'ready', 'failed')", name="state"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    name: Mapped[str] = mapped_column(String(64))
    alias: Mapped[str | None] = mapped_column(String(64))  # moved to the version once it is ready
    state: Mapped[str] = mapped_column(String(16))
    force: Mapped[bool]  # accept it although it names another base
    base_fingerprint: Mapped[str] = mapped_column(String(80))
    detail: Mapped[str | None] = mapped_column(Text)  # JSON: the stage, or the problems
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapter.id"))
    created_at: Mapped[datetime] = mapped_column(Utc)
    changed_at: Mapped[datetime] = mapped_column(Utc)


class AdapterQuota(Tenanted):
    """Limits other than the server's own."""

    __tablename__ = "adapter_quota"

    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    max_adapters: Mapped[int]  # ready versions
    max_bytes: Mapped[int] = mapped_column(BigInteger)
