"""Adapters as products: reports, aliases with a canary, grants, uploads, quotas."""

import sqlalchemy as sa
from alembic import op

revision = "adapter_products"
down_revision = "quotas"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
FACTS = ("nbytes", "report", "invocation", "pinned")


def upgrade() -> None:
    op.add_column("adapter", sa.Column("nbytes", sa.BigInteger, server_default="0", nullable=False))
    op.add_column("adapter", sa.Column("report", sa.Text))
    op.add_column("adapter", sa.Column("invocation", sa.Text))
    op.add_column(
        "adapter", sa.Column("pinned", sa.Boolean, server_default=sa.false(), nullable=False)
    )
    op.create_table(
        "adapter_alias",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("adapter_id", sa.String(40), nullable=False),
        sa.Column("canary_id", sa.String(40)),
        sa.Column("canary_percent", sa.Integer, nullable=False),
        sa.Column("previous_id", sa.String(40)),
        sa.Column("changed_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name="pk_adapter_alias"),
        _project("adapter_alias"),
        _adapter("adapter_alias", "adapter_id"),
        _adapter("adapter_alias", "canary_id"),
        _adapter("adapter_alias", "previous_id"),
        sa.CheckConstraint(
            "canary_percent BETWEEN 0 AND 100", name="ck_adapter_alias_canary_percent"
        ),
    )
    op.create_table(
        "adapter_grant",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("grantee_id", sa.String(40), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", "grantee_id", name="pk_adapter_grant"),
        _project("adapter_grant"),
        _project("adapter_grant", "grantee_id"),
    )
    op.create_table(
        "adapter_upload",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("alias", sa.String(64)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("force", sa.Boolean, nullable=False),
        sa.Column("base_fingerprint", sa.String(80), nullable=False),
        sa.Column("detail", sa.Text),
        sa.Column("adapter_id", sa.String(40)),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("changed_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_adapter_upload"),
        _project("adapter_upload"),
        _adapter("adapter_upload", "adapter_id"),
        sa.CheckConstraint(
            "state IN ('uploading', 'validating', 'ready', 'failed')",
            name="ck_adapter_upload_state",
        ),
    )
    op.create_table(
        "adapter_quota",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("max_adapters", sa.Integer, nullable=False),
        sa.Column("max_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name="pk_adapter_quota"),
        _project("adapter_quota"),
    )


def downgrade() -> None:
    for table in ("adapter_quota", "adapter_upload", "adapter_grant", "adapter_alias"):
        op.drop_table(table)
    for column in FACTS:
        op.drop_column("adapter", column)


def _project(table: str, column: str = "project_id") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], ["project.id"], name=f"fk_{table}_{column}_project")


def _adapter(table: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], ["adapter.id"], name=f"fk_{table}_{column}_adapter")
