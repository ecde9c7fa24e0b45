"""Which base an adapter was published for, by its fingerprint; "": the first that is served."""

import sqlalchemy as sa
from alembic import op

revision = "adapter_base"
down_revision = "subjects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("base_fingerprint", sa.String(80), nullable=False, server_default="")
    op.add_column("adapter", column)


def downgrade() -> None:
    op.drop_column("adapter", "base_fingerprint")
