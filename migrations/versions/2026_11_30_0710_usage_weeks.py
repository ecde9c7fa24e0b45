"""What each project used by week, for views of months over thousands of them."""

from alembic import op

revision = "usage_weeks"
down_revision = "refusals"
branch_labels = None
depends_on = None

KEYS = ("project_id", "tier", "model", "base_model", "adapter_id", "endpoint")
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
WEEK_S = 7 * 24 * 60 * 60  # counted from 1970-01-01


def upgrade() -> None:
    week = (
        f"to_timestamp(floor(extract(epoch FROM day) / {WEEK_S}) * {WEEK_S})"
        if op.get_bind().dialect.name == "postgresql"
        else f"strftime('%Y-%m-%d', strftime('%s', day) / {WEEK_S} * {WEEK_S}, 'unixepoch')"
        " || ' 00:00:00.000000'"
    )
    values = ", ".join(name if name == "project_id" else "''" for name in KEYS)
    added = ", ".join(f"sum({name})" for name in SUMS)
    op.execute(
        f"INSERT INTO usage_day (grain, day, {', '.join(KEYS)}, organisation_id,"  # noqa: S608
        f" {', '.join(SUMS)}) SELECT 'week', {week}, {values}, max(organisation_id), {added}"
        f" FROM usage_day WHERE grain = 'owner' GROUP BY {week}, project_id"
    )


def downgrade() -> None:
    op.execute("DELETE FROM usage_day WHERE grain = 'week'")
