"""What days of the ledger held whose events are not kept any more."""

import sqlalchemy as sa
from alembic import op

revision = "usage_dropped"
down_revision = "responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_dropped",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("period", sa.Date, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("cost_nano", sa.BigInteger, nullable=False),
        sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("day", "period", name="pk_usage_dropped"),
    )


def downgrade() -> None:
    op.drop_table("usage_dropped")
