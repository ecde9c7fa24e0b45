"""Roll-ups by quarter of an hour, costs by meter, adjustments, closed months, daily partitions."""

import sqlalchemy as sa
from alembic import op

revision = "rollups"
down_revision = "usage_ledger"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
BEFORE = "log_before"  # whose one batch are the events from before there were batches
SUMS = (
    "events", "requests", "unpriced", "prompt_tokens", "cached_tokens", "completion_tokens",
    "storage_byte_hours", "input_nano", "cached_nano", "output_nano", "storage_nano",
)  # fmt: skip

# Runs with its owner's rights: whoever writes events may have their day made, and nothing else.
PARTITION = """
CREATE FUNCTION usage_partition(wanted date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE name text := 'usage_event_' || to_char(wanted, 'YYYYMMDD');
BEGIN
  IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
  PERFORM pg_advisory_xact_lock(4221);
  IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
  EXECUTE format('CREATE TABLE %I (LIKE usage_event INCLUDING ALL)', name);
  EXECUTE format('ALTER TABLE usage_event ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                 name, wanted, wanted + 1);
END $$
"""


def upgrade() -> None:
    with op.batch_alter_table("price") as price:
        price.add_column(
            sa.Column("storage_pico", sa.BigInteger, nullable=False, server_default="0")
        )
        price.add_column(sa.Column("tier", sa.String(16), nullable=False, server_default="default"))
        price.create_check_constraint("ck_price_storage_pico", "storage_pico >= 0")
    with op.batch_alter_table("log_position") as position:
        position.add_column(sa.Column("batch", sa.BigInteger, nullable=False, server_default="0"))
    _create_rollup()
    op.create_table(
        "rollup_watermark",
        sa.Column("log", sa.String(40), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("log", name="pk_rollup_watermark"),
    )
    op.create_table(
        "closed_period",
        sa.Column("period", sa.Date, nullable=False),
        sa.Column("closed_at", WHEN, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("cost_nano", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("period", name="pk_closed_period"),
    )
    _rename_event_table()
    _create_event()
    if _postgres():
        op.execute(PARTITION)
        op.execute("REVOKE ALL ON FUNCTION usage_partition(date) FROM PUBLIC")
        op.execute("SELECT usage_partition(day) FROM (SELECT DISTINCT day FROM usage_event_old) d")
    _move_events()
    op.drop_table("usage_event_old")


def _postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _rename_event_table() -> None:
    op.drop_index("ix_usage_event_project_id_day", "usage_event")
    op.rename_table("usage_event", "usage_event_old")
    if _postgres():
        op.execute("ALTER TABLE usage_event_old RENAME CONSTRAINT pk_usage_event TO pk_old")


def _create_rollup() -> None:
    keys = (
        ("slot", WHEN), ("project_id", sa.String(40)), ("period", sa.Date),
        ("key_id", sa.String(40)), ("user_id", sa.String(256)), ("tier", sa.String(16)),
        ("model", sa.String(256)), ("base_model", sa.String(256)), ("adapter_id", sa.String(40)),
        ("endpoint", sa.String(64)), ("price_id", sa.String(40)),
    )  # fmt: skip
    op.create_table(
        "usage_rollup",
        *(sa.Column(name, kind, nullable=False) for name, kind in keys),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(*(name for name, _ in keys), name="pk_usage_rollup"),
    )
    op.create_index(
        "ix_usage_rollup_organisation_id_slot", "usage_rollup", ["organisation_id", "slot"]
    )


def _create_event() -> None:
    whole = [
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("slot", WHEN, nullable=False),
        sa.Column("period", sa.Date, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("user_id", sa.String(256), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
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
        sa.Column("storage_byte_hours", sa.BigInteger, nullable=False),
        sa.Column("price_id", sa.String(40)),
        sa.Column("cost_nano", sa.BigInteger),
        sa.Column("input_nano", sa.BigInteger, nullable=False),
        sa.Column("cached_nano", sa.BigInteger, nullable=False),
        sa.Column("output_nano", sa.BigInteger, nullable=False),
        sa.Column("storage_nano", sa.BigInteger, nullable=False),
        sa.Column("corrects", sa.String(64)),
        sa.Column("corrected_price", sa.String(40)),
        sa.Column("engine", sa.String(128), nullable=False),
        sa.Column("boot", sa.String(64), nullable=False),
        sa.Column("recovered", sa.Boolean, nullable=False),
        sa.Column("started_at", WHEN, nullable=False),
        sa.Column("finished_at", WHEN, nullable=False),
        sa.Column("log", sa.String(40), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
    ]
    op.create_table(
        "usage_event",
        *whole,
        sa.PrimaryKeyConstraint("id", "day", name="pk_usage_event"),
        *_rules(),
        sa.CheckConstraint(
            "coalesce(cost_nano, 0) = input_nano + cached_nano + output_nano + storage_nano",
            name="ck_usage_event_cost",
        ),
        sa.CheckConstraint(
            "(kind = 'adjustment') = (corrects IS NOT NULL)", name="ck_usage_event_corrects"
        ),
        postgresql_partition_by="RANGE (day)",
    )
    for columns in (["project_id", "day"], ["log", "batch"], ["corrects"]):
        op.create_index(f"ix_usage_event_{'_'.join(columns)}", "usage_event", columns)


def _rules() -> list[sa.CheckConstraint]:
    rules = {
        "prompt_tokens": "prompt_tokens >= 0",
        "cached_tokens": "cached_tokens BETWEEN 0 AND prompt_tokens",
        "completion_tokens": "completion_tokens >= 0",
        "priced": "(price_id IS NULL) = (cost_nano IS NULL)",
    }
    return [sa.CheckConstraint(rule, name=f"ck_usage_event_{name}") for name, rule in rules.items()]


def _move_events() -> None:
    """What was charged stays; the meters' shares follow from the price, as pricing.py has it."""
    slot = "date_bin('15 minutes', e.started_at, '1970-01-01 00:00+00')"
    month = "date_trunc('month', e.started_at AT TIME ZONE 'UTC')::date"
    if not _postgres():
        minute = "printf('%02d', CAST(strftime('%M', e.started_at) AS INTEGER) / 15 * 15)"
        slot = f"strftime('%Y-%m-%d %H:', e.started_at) || {minute} || ':00.000000'"
        month = "strftime('%Y-%m-01', e.started_at)"
    first = "((e.prompt_tokens - e.cached_tokens) * p.input_pico + 500) / 1000"
    second = (
        "((e.prompt_tokens - e.cached_tokens) * p.input_pico"
        " + e.cached_tokens * p.cached_input_pico + 500) / 1000"
    )
    charged = "coalesce(e.cost_nano, 0) <> 0"
    kept = (
        "organisation_id, project_id, key_id, model, base_model, adapter_id, digest, endpoint,"
        " outcome, finish_reason, prompt_tokens, cached_tokens, completion_tokens, price_id,"
        " cost_nano, engine, boot, recovered, started_at, finished_at"
    )
    op.get_bind().exec_driver_sql(  # colons in it are no parameters
        f"INSERT INTO usage_event (id, day, slot, period, kind, user_id, tier, {kept},"  # noqa: S608
        " storage_byte_hours, input_nano, cached_nano, output_nano, storage_nano, log, batch)"
        f" SELECT e.id, e.day, {slot}, {month}, 'usage', '', 'default',"
        f" {', '.join('e.' + name.strip() for name in kept.split(','))}, 0,"
        f" CASE WHEN {charged} THEN {first} ELSE 0 END,"
        f" CASE WHEN {charged} THEN {second} - {first} ELSE 0 END,"
        f" CASE WHEN {charged} THEN e.cost_nano - {second} ELSE 0 END, 0, '{BEFORE}', 1"
        " FROM usage_event_old e LEFT JOIN price p ON p.id = e.price_id"
    )
    op.execute(
        'INSERT INTO log_position (log, segment, "offset", batch)'  # noqa: S608
        f" SELECT '{BEFORE}', 0, 0, 1 WHERE EXISTS (SELECT 1 FROM usage_event)"
    )


def downgrade() -> None:
    """Adjustments and storage have no place in the older ledger."""
    for columns in ("project_id_day", "log_batch", "corrects"):
        op.drop_index(f"ix_usage_event_{columns}", "usage_event")
    op.rename_table("usage_event", "usage_event_new")
    if _postgres():
        op.execute("ALTER TABLE usage_event_new RENAME CONSTRAINT pk_usage_event TO pk_new")
        op.execute("DROP FUNCTION usage_partition(date)")
    names = _create_older_event()
    listed = ", ".join(names)
    op.execute(
        f"INSERT INTO usage_event ({listed}) SELECT {listed} FROM usage_event_new"  # noqa: S608
        " WHERE kind = 'usage'"
    )
    for table in ("usage_event_new", "closed_period", "rollup_watermark", "usage_rollup"):
        op.drop_table(table)
    op.execute(f"DELETE FROM log_position WHERE log = '{BEFORE}'")  # noqa: S608
    with op.batch_alter_table("log_position") as position:
        position.drop_column("batch")
    with op.batch_alter_table("price") as price:
        price.drop_constraint("ck_price_storage_pico", type_="check")
        price.drop_column("tier")
        price.drop_column("storage_pico")


def _create_older_event() -> list[str]:
    columns = [
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
    ]
    names = [column.name for column in columns]
    op.create_table(
        "usage_event",
        *columns,
        sa.PrimaryKeyConstraint("id", "day", name="pk_usage_event"),
        *_rules(),
    )
    op.create_index("ix_usage_event_project_id_day", "usage_event", ["project_id", "day"])
    return names
