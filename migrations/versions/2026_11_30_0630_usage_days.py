"""Usage and paces by day, for views over very many quarters of an hour."""

import sqlalchemy as sa
from alembic import op

revision = "usage_days"
down_revision = "partition_race"
branch_labels = None
depends_on = None

KEYS = {
    "project_id": 40,
    "tier": 16,
    "model": 256,
    "base_model": 256,
    "adapter_id": 40,
    "endpoint": 64,
}
SUMS = (
    "events",
    "requests",
    "unpriced",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "storage_byte_hours",
    "input_nano",
    "cached_nano",
    "output_nano",
    "storage_nano",
)
GRAINS = {
    "all": tuple(KEYS),
    "owner": ("project_id",),
    "kind": ("tier", "model", "base_model", "endpoint"),
}
WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "usage_day",
        sa.Column("grain", sa.String(8), nullable=False),
        sa.Column("day", WHEN, nullable=False),
        *(sa.Column(name, sa.String(size), nullable=False) for name, size in KEYS.items()),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("grain", "day", *KEYS, name="pk_usage_day"),
    )
    op.create_table(
        "usage_pace_day",
        sa.Column("day", WHEN, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", "kind", "step", name="pk_usage_pace_day"),
    )
    postgres = op.get_bind().dialect.name == "postgresql"
    day = (
        "date_trunc('day', slot, 'UTC')"
        if postgres
        else "substr(slot, 1, 10) || ' 00:00:00.000000'"
    )
    keys, sums = ", ".join(KEYS), ", ".join(SUMS)
    added = ", ".join(f"sum({name})" for name in SUMS)
    for grain, told in GRAINS.items():
        values = ", ".join(name if name in told else "''" for name in KEYS)
        owner = "max(organisation_id)" if "project_id" in told else "'*'"
        by = ", ".join([day, *told])
        op.execute(
            f"INSERT INTO usage_day (grain, day, {keys}, organisation_id, {sums})"  # noqa: S608
            f" SELECT '{grain}', {day}, {values}, {owner}, {added} FROM usage_rollup GROUP BY {by}"
        )
    op.execute(
        "INSERT INTO usage_pace_day (day, kind, step, requests)"  # noqa: S608
        f" SELECT {day}, kind, step, sum(requests) FROM usage_pace GROUP BY 1, 2, 3"
    )
    op.create_index(
        "ix_usage_day_organisation_id_grain_day", "usage_day", ["organisation_id", "grain", "day"]
    )


def downgrade() -> None:
    op.drop_table("usage_pace_day")
    op.drop_table("usage_day")
