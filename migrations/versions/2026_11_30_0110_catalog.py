"""Adapters: a name in a project, and its immutable versions."""

import sqlalchemy as sa
from alembic import op

revision = "catalog"
down_revision = "tenants_and_keys"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "adapter",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("retired_at", WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_adapter"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name="fk_adapter_project_id_project"
        ),
        sa.UniqueConstraint(
            "project_id", "name", "version", name="uq_adapter_project_id_name_version"
        ),
        sa.CheckConstraint("version > 0", name="ck_adapter_version"),
        sa.CheckConstraint("rank > 0", name="ck_adapter_rank"),
        sa.CheckConstraint("state IN ('ready', 'retired')", name="ck_adapter_state"),
    )


def downgrade() -> None:
    op.drop_table("adapter")
