"""Spend alerts' outbox: once for each threshold and period. Nothing was in it before."""

import sqlalchemy as sa
from alembic import op

revision = "alert_outbox"
down_revision = "strict_projects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create(("alert_id", "period", "threshold_nano"), threshold=True)


def downgrade() -> None:
    _create(("alert_id", "period"), threshold=False)


def _create(once: tuple[str, ...], *, threshold: bool) -> None:
    op.drop_table("alert_delivery")
    when = sa.DateTime(timezone=True)
    op.create_table(
        "alert_delivery",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("alert_id", sa.String(40), nullable=False),
        sa.Column("period", sa.String(16), nullable=False),
        *([sa.Column("threshold_nano", sa.BigInteger, nullable=False)] if threshold else []),
        sa.Column("body", sa.String(4096), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", when, nullable=False),
        sa.Column("delivered_at", when),
        sa.PrimaryKeyConstraint("id", name="pk_alert_delivery"),
        sa.ForeignKeyConstraint(
            ["alert_id"], ["spend_alert.id"], name="fk_alert_delivery_alert_id_spend_alert",
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint(*once, name=f"uq_alert_delivery_{'_'.join(once)}"),
    )  # fmt: skip
