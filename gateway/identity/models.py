"""Who may call: organisation (billing parent) > project (the tenant) > API key.

A key is stored as a keyed hash: the key itself is shown once and kept nowhere. Rows are never
deleted; a project is archived and a key revoked, so that usage always finds its owner.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.db import Base, Utc


class KeyKind(StrEnum):
    PROJECT = "project"
    ADMIN = "admin"  # of the organisation; calls no inference route


class Role(StrEnum):
    """Of a user in an organisation or a project."""

    OWNER = "owner"
    ADMIN = "admin"
    BILLING = "billing"
    DEVELOPER = "developer"
    VIEWER = "viewer"


_ROLES = f"role IN ({', '.join(repr(str(role)) for role in Role)})"


class Organisation(Base):
    __tablename__ = "organisation"
    __table_args__ = (CheckConstraint("billing IN ('postpaid', 'prepaid')", name="billing"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(Utc)
    billing: Mapped[str] = mapped_column(String(16), default="postpaid")  # prepaid: by credits
    plan_id: Mapped[str | None] = mapped_column(String(40))
    weight: Mapped[int | None]  # of each of its projects; None: the plan's


class Project(Base):
    __tablename__ = "project"
    __table_args__ = (
        # An archived project leaves its name to the next.
        Index(
            "uq_project_organisation_id_name",
            "organisation_id",
            "name",
            unique=True,
            sqlite_where=text("archived_at IS NULL"),
            postgresql_where=text("archived_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    name: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(Utc)
    archived_at: Mapped[datetime | None] = mapped_column(Utc)
    # Fields of requests that nobody knows are refused, not ignored.
    strict: Mapped[bool] = mapped_column(default=False, server_default=false())
    weight: Mapped[int | None]  # against other projects'; None: the organisation's
    text_days: Mapped[int | None]  # that texts of requests are kept; None: none is

    organisation: Mapped[Organisation] = relationship(lazy="raise")


class ServiceAccount(Base):
    """A program of a project; its keys end with it."""

    __tablename__ = "service_account"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16))  # "owner", "member" or "none"
    created_at: Mapped[datetime] = mapped_column(Utc)
    deleted_at: Mapped[datetime | None] = mapped_column(Utc)


class User(Base):
    """A person of an organisation."""

    __tablename__ = "member"
    __table_args__ = (
        CheckConstraint(_ROLES, name="role"),
        Index(
            "uq_member_organisation_id_email",
            "organisation_id",
            "email",
            unique=True,
            sqlite_where=text("removed_at IS NULL"),
            postgresql_where=text("removed_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    email: Mapped[str] = mapped_column(String(254))
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Utc)
    removed_at: Mapped[datetime | None] = mapped_column(Utc)


class ProjectUser(Base):
    """What a person may do in one project."""

    __tablename__ = "project_member"
    __table_args__ = (CheckConstraint(_ROLES, name="role"),)

    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("member.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Utc)


class ApiKey(Base):
    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint("kind IN ('project', 'admin')", name="kind"),
        CheckConstraint("(kind = 'project') = (project_id IS NOT NULL)", name="owner"),
        CheckConstraint("requests_per_minute > 0", name="requests_per_minute"),
        CheckConstraint("tokens_per_minute > 0", name="tokens_per_minute"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # key_ and the public part
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"), index=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("project.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64), unique=True)  # HMAC-SHA256, hexadecimal
    pepper_version: Mapped[int]
    last4: Mapped[str] = mapped_column(String(4))
    requests_per_minute: Mapped[int | None]  # None: unlimited
    tokens_per_minute: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime | None] = mapped_column(Utc)
    revoked_at: Mapped[datetime | None] = mapped_column(Utc)
    service_account_id: Mapped[str | None] = mapped_column(ForeignKey("service_account.id"))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("member.id"))
    # Of an admin key that is no person's. None: the person's, or owner.
    role: Mapped[str | None] = mapped_column(String(16))
    replaces: Mapped[str | None] = mapped_column(String(40))  # the key it was rotated from
    # Scopes: lists of what it may be used for. None: everything its project may.
    endpoints: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))  # public names
    networks: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))  # 10.0.0.0/8

    project: Mapped[Project | None] = relationship(lazy="raise")
    organisation: Mapped[Organisation] = relationship(lazy="raise")


class Invite(Base):
    """Who may come to an organisation, and as what, once the sign-in service vouches for them."""

    __tablename__ = "invite"
    __table_args__ = (
        CheckConstraint(_ROLES, name="role"),
        Index(None, "email"),
        Index(None, "organisation_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisation.id"))
    email: Mapped[str] = mapped_column(String(254))
    role: Mapped[str] = mapped_column(String(16))
    projects: Mapped[dict[str, str]] = mapped_column(JSON)  # id -> role
    created_at: Mapped[datetime] = mapped_column(Utc)
    expires_at: Mapped[datetime] = mapped_column(Utc)
    accepted_at: Mapped[datetime | None] = mapped_column(Utc)
    user_id: Mapped[str | None] = mapped_column(String(40))  # who accepted it


class Login(Base):
    """How one person signs in to the dashboard: a person of an organisation, or an operator.

    Operators see every organisation; they are people of none, so their address stands here.
    """

    __tablename__ = "login"
    __table_args__ = (
        CheckConstraint("(user_id IS NULL) = (email IS NOT NULL)", name="whose"),
        Index(
            "uq_login_user_id",
            "user_id",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "uq_login_email",
            "email",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("member.id"))
    email: Mapped[str | None] = mapped_column(String(254))  # of an operator
    password: Mapped[str] = mapped_column(String(256))  # argon2id, with its parameters; "": none
    # Whom the sign-in service means: SHA-256 of its name and its name for them, hexadecimal.
    subject: Mapped[str | None] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime] = mapped_column(Utc)
    changed_at: Mapped[datetime] = mapped_column(Utc)
    ended_at: Mapped[datetime | None] = mapped_column(Utc)


class SignIn(Base):
    """A browser that is signed in. Its cookie is known by its hash alone."""

    __tablename__ = "sign_in"
    __table_args__ = (Index(None, "expires_at"),)

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256, hexadecimal
    login_id: Mapped[str] = mapped_column(ForeignKey("login.id"), index=True)
    begun_at: Mapped[datetime] = mapped_column(Utc)
    seen_at: Mapped[datetime] = mapped_column(Utc)  # to a few minutes
    expires_at: Mapped[datetime] = mapped_column(Utc)
    browser: Mapped[str] = mapped_column(String(200))  # as it calls itself
