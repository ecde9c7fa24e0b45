"""Responses that are kept, and for how long."""

import sqlalchemy as sa
from alembic import op

revision = "responses"
down_revision = "alert_outbox"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "response",
        sa.Column("id", sa.String(48), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("body", "items", "conversation")),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_response"),
        _project("response"),
    )
    op.create_index("ix_response_project_id_created_at", "response", ["project_id", "created_at"])
    op.create_index("ix_response_expires_at", "response", ["expires_at"])
    op.create_table(
        "response_retention",
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("days", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name="pk_response_retention"),
        _project("response_retention"),
        sa.CheckConstraint("days >= 0", name="ck_response_retention_days"),
    )


def downgrade() -> None:
    for table in ("response_retention", "response"):
        op.drop_table(table)


def _project(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["project_id"], ["project.id"], name=f"fk_{table}_project_id_project"
    )
