"""How much of a busy engine a project, an organisation or a plan weighs."""

import sqlalchemy as sa
from alembic import op

revision = "weights"
down_revision = "usage_dropped"
branch_labels = None
depends_on = None
TABLES = ("project", "organisation", "plan")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("weight", sa.Integer))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "weight")
