"""Deliveries of usage to billing systems, what those call organisations, and how far each is."""

import sqlalchemy as sa
from alembic import op

revision = "sinks"
down_revision = "dropped_charges"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "sink_watermark",
        sa.Column("sink", sa.String(40), nullable=False),
        sa.Column("log", sa.String(40), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sink", "log", name="pk_sink_watermark"),
    )
    op.create_table(
        "sink_customer",
        sa.Column("sink", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("customer", sa.String(128), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("sink", "organisation_id", name="pk_sink_customer"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisation.id"],
            name="fk_sink_customer_organisation_id_organisation",
        ),
    )  # fmt: skip
    op.create_table(
        "sink_delivery",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("sink", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("meter", sa.String(100), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("quantity", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("customer", sa.String(128), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("doubt_since", TIME),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("taken_at", TIME),
        sa.Column("detail", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sink_delivery"),
        sa.CheckConstraint(
            "state IN ('held', 'pending', 'taken', 'refused', 'uncertain')",
            name="ck_sink_delivery_state",
        ),
    )
    op.create_index(
        "ix_sink_delivery_sink_state_next_at", "sink_delivery", ["sink", "state", "next_at"]
    )


def downgrade() -> None:
    for name in ("sink_delivery", "sink_customer", "sink_watermark"):
        op.drop_table(name)
