"""What a bill tells of days of the ledger whose events are not kept any more."""

import sqlalchemy as sa
from alembic import op

revision = "dropped_charges"
down_revision = "logins"
branch_labels = None
depends_on = None

SUMS = (
    "requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "storage_byte_hours",
    "input_nano",
    "cached_nano",
    "output_nano",
    "storage_nano",
)


def upgrade() -> None:
    op.create_table(
        "usage_dropped_charge",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("period", sa.Date, nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("base_model", sa.String(256), nullable=False),
        sa.Column("adapter_id", sa.String(40), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("price_id", sa.String(40), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(
            "day", "period", "project_id", "key_id", "base_model", "adapter_id", "tier",
            "price_id",
            name="pk_usage_dropped_charge",
        ),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_table("usage_dropped_charge")
