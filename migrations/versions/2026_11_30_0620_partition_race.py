"""Two gateways that make a day's partition at once: whoever comes second finds it made.

``to_regclass`` may remember from before the lock that there was no such table; the catalogue says.
"""

from alembic import op

revision = "partition_race"
down_revision = "request_log"
branch_labels = None
depends_on = None

BODY = """
CREATE OR REPLACE FUNCTION usage_partition(wanted date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE name text := 'usage_event_' || to_char(wanted, 'YYYYMMDD');
BEGIN
  IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
  PERFORM pg_advisory_xact_lock(4221);
  IF {made} THEN RETURN; END IF;
  EXECUTE format('CREATE TABLE %I (LIKE usage_event INCLUDING ALL)', name);
  EXECUTE format('ALTER TABLE usage_event ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                 name, wanted, wanted + 1);
END $$
"""
MADE = """EXISTS (
    SELECT FROM pg_catalog.pg_class day, pg_catalog.pg_class whole
    WHERE whole.oid = 'usage_event'::regclass
      AND day.relname = name AND day.relnamespace = whole.relnamespace
  )"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(BODY.format(made=MADE))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(BODY.format(made="to_regclass(name) IS NOT NULL"))
