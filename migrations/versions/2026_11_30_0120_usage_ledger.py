"""Prices, usage events, and how far each gateway's log was read."""

import sqlalchemy as sa
from alembic import op

revision = "usage_ledger"
down_revision = "catalog"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_price()
    _create_usage_event()
    op.create_table(
        "log_position",
        sa.Column("log", sa.String(40), nullable=False),
        sa.Column("segment", sa.BigInteger, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("log", name="pk_log_position"),
    )


def _create_price() -> None:
    op.create_table(
        "price",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("base_model", sa.String(256)),
        sa.Column("adapter_id", sa.String(40)),
        sa.Column("input_pico", sa.BigInteger, nullable=False),
        sa.Column("cached_input_pico", sa.BigInteger, nullable=False),
        sa.Column("output_pico", sa.BigInteger, nullable=False),
        sa.Column("effective_from", WHEN, nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_price"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name="fk_price_adapter_id_adapter"),
        sa.CheckConstraint("(base_model IS NULL) <> (adapter_id IS NULL)", name="ck_price_subject"),
        sa.CheckConstraint("input_pico >= 0", name="ck_price_input_pico"),
        sa.CheckConstraint("cached_input_pico >= 0", name="ck_price_cached_input_pico"),
        sa.CheckConstraint("output_pico >= 0", name="ck_price_output_pico"),
    )
    op.create_index("ix_price_base_model_effective_from", "price", ["base_model", "effective_from"])
    op.create_index("ix_price_adapter_id_effective_from", "price", ["adapter_id", "effective_from"])


def _create_usage_event() -> None:
    op.create_table(
        "usage_event",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("base_model", sa.String(256), nullable=False),
        sa.Column("adapter_id", sa.String(40)),
        sa.Column("digest", sa.String(80)),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("finish_reason", sa.String(32)),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("price_id", sa.String(40)),
        sa.Column("cost_nano", sa.BigInteger),
        sa.Column("engine", sa.String(128), nullable=False),
        sa.Column("boot", sa.String(64), nullable=False),
        sa.Column("recovered", sa.Boolean, nullable=False),
        sa.Column("started_at", WHEN, nullable=False),
        sa.Column("finished_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", "day", name="pk_usage_event"),
        sa.CheckConstraint("prompt_tokens >= 0", name="ck_usage_event_prompt_tokens"),
        sa.CheckConstraint(
            "cached_tokens BETWEEN 0 AND prompt_tokens", name="ck_usage_event_cached_tokens"
        ),
        sa.CheckConstraint("completion_tokens >= 0", name="ck_usage_event_completion_tokens"),
        sa.CheckConstraint(
            "(price_id IS NULL) = (cost_nano IS NULL)", name="ck_usage_event_priced"
        ),
    )
    op.create_index("ix_usage_event_project_id_day", "usage_event", ["project_id", "day"])


def downgrade() -> None:
    for table in ("log_position", "usage_event", "price"):
        op.drop_table(table)
