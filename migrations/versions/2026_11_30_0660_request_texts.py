"""Texts of requests, for projects that want them kept for a number of days."""

import sqlalchemy as sa
from alembic import op

revision = "request_texts"
down_revision = "adapter_base"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("project", sa.Column("text_days", sa.Integer))
    op.create_table(
        "request_text",
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("user_id", sa.String(256), nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("ended_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_request_text"),
        *(
            sa.ForeignKeyConstraint(
                [f"{table}_id"], [f"{table}.id"], name=f"fk_request_text_{table}_id_{table}"
            )
            for table in ("organisation", "project")
        ),
    )
    op.create_index("ix_request_text_project_id_user_id", "request_text", ["project_id", "user_id"])
    op.create_index("ix_request_text_expires_at", "request_text", ["expires_at"])


def downgrade() -> None:
    op.drop_table("request_text")
    op.drop_column("project", "text_days")
