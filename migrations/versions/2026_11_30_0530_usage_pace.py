"""How fast answers came and how they ended, by quarter of an hour, project and model."""

import sqlalchemy as sa
from alembic import op

revision = "usage_pace"
down_revision = "sinks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_pace",
        sa.Column("slot", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "slot", "project_id", "model", "kind", "step", name="pk_usage_pace"
        ),
    )
    op.create_index("ix_usage_pace_organisation_id_slot", "usage_pace", ["organisation_id", "slot"])


def downgrade() -> None:
    op.drop_table("usage_pace")
