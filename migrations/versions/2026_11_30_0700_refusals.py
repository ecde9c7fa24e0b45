"""Requests that were refused, by kind and minute, for the request log."""

import sqlalchemy as sa
from alembic import op

revision = "refusals"
down_revision = "invites"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "refusal",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("param", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("limited", sa.String(320), nullable=False),
        sa.Column("times", sa.BigInteger, nullable=False),
        sa.Column("first_at", WHEN, nullable=False),
        sa.Column("last_at", WHEN, nullable=False),
        sa.Column("wait_ms", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_refusal"),
        sa.CheckConstraint("times > 0", name="ck_refusal_times"),
    )
    for columns in (
        ["organisation_id", "first_at", "id"],
        ["project_id", "first_at"],
        ["first_at"],
    ):
        op.create_index(f"ix_refusal_{'_'.join(columns)}", "refusal", columns)


def downgrade() -> None:
    op.drop_table("refusal")
