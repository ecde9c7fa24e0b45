"""Organisations, projects, API keys, and the epoch that announces changes."""

import sqlalchemy as sa
from alembic import op

revision = "tenants_and_keys"
down_revision = None
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    epoch = op.create_table(
        "epoch",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_epoch"),
    )
    op.bulk_insert(epoch, [{"id": 1, "value": 0}])
    op.create_table(
        "organisation",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_organisation"),
        sa.UniqueConstraint("name", name="uq_organisation_name"),
    )
    op.create_table(
        "project",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("archived_at", WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_project"),
        sa.ForeignKeyConstraint(
            ["organisation_id"],
            ["organisation.id"],
            name="fk_project_organisation_id_organisation",
        ),
    )
    op.create_index(
        "uq_project_organisation_id_name",
        "project",
        ["organisation_id", "name"],
        unique=True,
        sqlite_where=sa.text("archived_at IS NULL"),
        postgresql_where=sa.text("archived_at IS NULL"),
    )
    _create_api_key()


def _create_api_key() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("pepper_version", sa.Integer, nullable=False),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("tokens_per_minute", sa.Integer),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN),
        sa.Column("revoked_at", WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.UniqueConstraint("hash", name="uq_api_key_hash"),
        sa.ForeignKeyConstraint(
            ["organisation_id"],
            ["organisation.id"],
            name="fk_api_key_organisation_id_organisation",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name="fk_api_key_project_id_project"
        ),
        sa.CheckConstraint("kind IN ('project', 'admin')", name="ck_api_key_kind"),
        sa.CheckConstraint(
            "(kind = 'project') = (project_id IS NOT NULL)", name="ck_api_key_owner"
        ),
        sa.CheckConstraint("requests_per_minute > 0", name="ck_api_key_requests_per_minute"),
        sa.CheckConstraint("tokens_per_minute > 0", name="ck_api_key_tokens_per_minute"),
    )
    op.create_index("ix_api_key_organisation_id", "api_key", ["organisation_id"])
    op.create_index("ix_api_key_project_id", "api_key", ["project_id"])


def downgrade() -> None:
    for table in ("api_key", "project", "organisation", "epoch"):
        op.drop_table(table)
