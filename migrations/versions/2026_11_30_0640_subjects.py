"""Logins that are known by the sign-in service's name for somebody."""

import sqlalchemy as sa
from alembic import op

revision = "subjects"
down_revision = "usage_days"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("login", sa.Column("subject", sa.String(64)))
    op.create_index("ix_login_subject", "login", ["subject"])


def downgrade() -> None:
    op.drop_index("ix_login_subject", "login")
    op.drop_column("login", "subject")
