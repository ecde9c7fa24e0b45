"""Whether a project has fields refused that nobody knows."""

import sqlalchemy as sa
from alembic import op

revision = "strict_projects"
down_revision = "files_and_batches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "project", sa.Column("strict", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    op.drop_column("project", "strict")
