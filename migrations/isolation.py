"""Row-level security on Postgres, derived from the models: no table is forgotten.

Requests of a tenant run as a role of their own (``Database.reading(within=…)``), which sees and
changes rows of the organisation, or project, that the transaction named, and nothing else. The
repositories add the same predicate themselves; this is what holds should one of them err.

A table is isolated by its columns: ``organisation_id`` with ``project_id`` or without, else by
the row that a foreign key of it names. A table with neither must be in ``SHARED``, or migrating
fails. Settling, the snapshot and the operator's commands see every tenant and keep the login's
own role.
"""

from collections.abc import Iterable
from hashlib import blake2b

from sqlalchemy import Connection, MetaData, Table, text

from gateway.db import TENANT_ROLE

ORGANISATION = "current_setting('loratorio.organisation', true)"
PROJECT = "current_setting('loratorio.project', true)"
ALL_PROJECTS = f"coalesce({PROJECT}, '') = ''"

# Belong to no tenant -> what a tenant's transaction may do there.
SHARED = {
    "epoch": "SELECT, UPDATE",
    "closed_period": "SELECT",
    "log_position": "SELECT (log, batch)",  # which events are in the roll-ups
    "plan": "SELECT",
    "rollup_watermark": "SELECT",
    "sink_watermark": "",
    "usage_dropped": "",
    "usage_pace_day": "",
}
# Rules that no column says.
SPECIAL = {
    "organisation": f"id = {ORGANISATION} AND {ALL_PROJECTS}",
    "project": f"organisation_id = {ORGANISATION} AND ({ALL_PROJECTS} OR id = {PROJECT})",
    "price": "adapter_id IS NULL OR EXISTS (SELECT 1 FROM adapter a WHERE a.id = adapter_id)",
}
# Several foreign keys lead to tenants there; this one says whose the row is.
OWNED = ("adapter_alias", "adapter_grant", "adapter_upload", "adapter_quota")
SPECIAL |= {
    name: f"EXISTS (SELECT 1 FROM project p WHERE p.id = {name}.project_id)"  # noqa: S608
    for name in OWNED
}
# Only appended to, and some of it not by tenants.
MAY = {
    "price": "SELECT",
    "sink_customer": "SELECT",
    "sink_delivery": "SELECT",
    "usage_day": "SELECT",
    "usage_dropped_charge": "SELECT",
    "usage_event": "SELECT",
    "usage_pace": "SELECT",
    "usage_rollup": "SELECT",
    "audit_event": "SELECT, INSERT",
    "refusal": "SELECT, DELETE",
}
EVERYTHING = "SELECT, INSERT, UPDATE, DELETE"
ROLE = (
    f"""DO $$ BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{TENANT_ROLE}') THEN
        CREATE ROLE {TENANT_ROLE} NOLOGIN NOBYPASSRLS;
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$""",
    f"""DO $$ BEGIN
      IF NOT pg_has_role(current_user, '{TENANT_ROLE}', 'MEMBER') THEN
        GRANT {TENANT_ROLE} TO CURRENT_USER;
      END IF;
      EXECUTE format('GRANT USAGE ON SCHEMA %I TO {TENANT_ROLE}', current_schema());
    END $$""",
)


class NotIsolated(Exception):
    """A table says neither whose its rows are nor that they are nobody's."""


def rule(table: Table) -> str:
    """Which rows a tenant sees. Raises NotIsolated."""
    if table.name in SPECIAL:
        return SPECIAL[table.name]
    columns = table.columns.keys()
    if "organisation_id" in columns:
        of_project = f" OR project_id = {PROJECT}" if "project_id" in columns else ""
        return f"organisation_id = {ORGANISATION} AND ({ALL_PROJECTS}{of_project})"
    for key in table.foreign_keys:
        parent, column = key.column.table, key.column
        if parent.name not in SHARED:  # whose own rule holds for what is selected here
            named = f"{table.name}.{key.parent.name}"
            return f"EXISTS (SELECT 1 FROM {parent.name} p WHERE p.{column.name} = {named})"  # noqa: S608
    raise NotIsolated(f"table {table.name}: give it organisation_id or project_id, or share it")


def isolate(connection: Connection, metadata: MetaData) -> None:
    """Bring policies and grants to what the models say; what is so already is not touched."""
    if connection.dialect.name != "postgresql":
        return
    wanted = {
        table.name: list(_statements(table))
        for table in metadata.sorted_tables
        if table.name not in SHARED
    }
    wanted["organisation"] += _grants(set(SHARED) & set(metadata.tables))
    told = "SELECT polrelid::regclass::text, obj_description(oid, 'pg_policy') FROM pg_policy"
    found = {str(name): comment for name, comment in connection.execute(text(told))}
    stale = {name: does for name, does in wanted.items() if found.get(name) != _mark(does)}
    if not stale:
        return
    for statement in ROLE:
        connection.exec_driver_sql(statement)
    for name, statements in stale.items():
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"COMMENT ON POLICY tenant ON {name} IS '{_mark(statements)}'")


def _statements(table: Table) -> list[str]:
    name = table.name
    return [
        *_grants([name]),
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
        f"DROP POLICY IF EXISTS tenant ON {name}",
        f"CREATE POLICY tenant ON {name} TO {TENANT_ROLE} USING ({rule(table)})",
    ]


def _grants(names: Iterable[str]) -> list[str]:
    statements = []
    for name in sorted(names):
        may = SHARED[name] if name in SHARED else MAY.get(name, EVERYTHING)
        statements.append(f"REVOKE ALL ON {name} FROM {TENANT_ROLE}")
        if may:
            statements.append(f"GRANT {may} ON {name} TO {TENANT_ROLE}")
    return statements


def _mark(statements: list[str]) -> str:
    digest = blake2b("\n".join(statements).encode(), digest_size=8).hexdigest()
    return f"isolation {digest}"
