"""How fast each request was answered, and an order in which a tenant's requests are read."""

import sqlalchemy as sa
from alembic import op

revision = "request_log"
down_revision = "usage_pace"
branch_labels = None
depends_on = None

COLUMNS = ("first_ns", "token_ns")
INDEX = "ix_usage_event_organisation_id_day_started_at_id"


def upgrade() -> None:
    for name in COLUMNS:
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        op.add_column("usage_event", column)
    op.create_index(INDEX, "usage_event", ["organisation_id", "day", "started_at", "id"])


def downgrade() -> None:
    op.drop_index(INDEX, "usage_event")
    for name in COLUMNS:
        op.drop_column("usage_event", name)
