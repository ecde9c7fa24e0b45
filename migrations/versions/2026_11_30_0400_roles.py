"""Admin keys with a role."""

import sqlalchemy as sa
from alembic import op

revision = "roles"
down_revision = "adapter_ends"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("role", sa.String(16)))


def downgrade() -> None:
    op.drop_column("api_key", "role")
