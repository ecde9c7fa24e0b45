"""When requests that still run on a retired adapter are ended."""

import sqlalchemy as sa
from alembic import op

revision = "adapter_ends"
down_revision = "adapter_products"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("adapter", sa.Column("ends_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("adapter", "ends_at")
