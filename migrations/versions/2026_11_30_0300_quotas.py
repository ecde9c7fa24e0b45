"""Users, service accounts, scopes, quotas, budgets, plans, credits, alerts, the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "quotas"
down_revision = "rollups"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
MOST_NANO = 9_000_000_000_000_000
LEVELS = "level IN ('organisation', 'project', 'key', 'customer', 'tag', 'plan')"
ROLES = "role IN ('owner', 'admin', 'billing', 'developer', 'viewer')"
RATES = (
    "requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day", "concurrency",
)  # fmt: skip
SCOPES = ("endpoints", "models", "networks")


def upgrade() -> None:
    _create_people()
    _extend_identity()
    _create_limits()
    _create_money()
    _create_audit()


def _id(name: str = "id", *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(40), nullable=null)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*(columns or ("id",)), name=f"pk_{table}")


def _owner(table: str, column: str, other: str, **more: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}", **more
    )


def _create_people() -> None:
    op.create_table(
        "service_account",
        _id(),
        _id("project_id"),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("deleted_at", WHEN),
        _key("service_account"),
        _owner("service_account", "project_id", "project"),
    )
    op.create_index("ix_service_account_project_id", "service_account", ["project_id"])
    op.create_table(
        "member",
        _id(),
        _id("organisation_id"),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("removed_at", WHEN),
        _key("member"),
        _owner("member", "organisation_id", "organisation"),
        sa.CheckConstraint(ROLES, name="ck_member_role"),
    )
    op.create_index(
        "uq_member_organisation_id_email",
        "member",
        ["organisation_id", "email"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "project_member",
        _id("project_id"),
        _id("user_id"),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        _key("project_member", "project_id", "user_id"),
        _owner("project_member", "project_id", "project"),
        _owner("project_member", "user_id", "member"),
        sa.CheckConstraint(ROLES, name="ck_project_member_role"),
    )


def _extend_identity() -> None:
    # Never by making the table anew: rows of other tables refer to it.
    op.execute(
        "ALTER TABLE organisation ADD COLUMN billing VARCHAR(16) NOT NULL DEFAULT 'postpaid' "
        "CONSTRAINT ck_organisation_billing CHECK (billing IN ('postpaid', 'prepaid'))"
    )
    op.execute("ALTER TABLE organisation ADD COLUMN plan_id VARCHAR(40)")
    with op.batch_alter_table("api_key") as table:
        for name in ("service_account_id", "user_id", "replaces"):
            table.add_column(_id(name, null=True))
        for name in SCOPES:
            table.add_column(sa.Column(name, sa.JSON))
        table.create_foreign_key(
            "fk_api_key_service_account_id_service_account",
            "service_account",
            ["service_account_id"],
            ["id"],
        )
        table.create_foreign_key("fk_api_key_user_id_member", "member", ["user_id"], ["id"])


def _create_limits() -> None:
    op.create_table(
        "quota",
        _id(),
        _id("organisation_id", null=True),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(320), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in RATES),
        sa.Column("updated_at", WHEN, nullable=False),
        _key("quota"),
        sa.UniqueConstraint("level", "subject", "model", name="uq_quota_level_subject_model"),
        sa.CheckConstraint(LEVELS, name="ck_quota_level"),
        *(sa.CheckConstraint(f"{name} >= 0", name=f"ck_quota_{name}") for name in RATES),
    )
    op.create_index("ix_quota_organisation_id", "quota", ["organisation_id"])
    op.create_table(
        "budget",
        _id(),
        _id("organisation_id", null=True),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(320), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("period", sa.String(8), nullable=False),
        sa.Column("time_zone", sa.String(64), nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("on_exhaust", sa.String(8), nullable=False),
        sa.Column("updated_at", WHEN, nullable=False),
        _key("budget"),
        sa.UniqueConstraint(
            "level", "subject", "model", "period", name="uq_budget_level_subject_model_period"
        ),
        sa.CheckConstraint(LEVELS, name="ck_budget_level"),
        sa.CheckConstraint("period IN ('day', 'month')", name="ck_budget_period"),
        sa.CheckConstraint("on_exhaust IN ('cut', 'finish')", name="ck_budget_on_exhaust"),
        sa.CheckConstraint(f"amount_nano BETWEEN 0 AND {MOST_NANO}", name="ck_budget_amount_nano"),
    )
    op.create_index("ix_budget_organisation_id", "budget", ["organisation_id"])
    op.create_table(
        "plan",
        _id(),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        _key("plan"),
        sa.UniqueConstraint("name", name="uq_plan_name"),
    )


def _create_money() -> None:
    op.create_table(
        "credit",
        _id(),
        _id("organisation_id"),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("note", sa.String(256), nullable=False),
        sa.Column("granted_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN),
        sa.Column("lapsed_nano", sa.BigInteger),
        _key("credit"),
        _owner("credit", "organisation_id", "organisation"),
        sa.CheckConstraint(f"amount_nano BETWEEN 1 AND {MOST_NANO}", name="ck_credit_amount_nano"),
        sa.CheckConstraint("lapsed_nano BETWEEN 0 AND amount_nano", name="ck_credit_lapsed_nano"),
    )
    op.create_index("ix_credit_organisation_id", "credit", ["organisation_id"])
    op.create_table(
        "spend_alert",
        _id(),
        _id("organisation_id"),
        _id("project_id", null=True),
        sa.Column("threshold_nano", sa.BigInteger, nullable=False),
        sa.Column("recipients", sa.String(2048), nullable=False),
        sa.Column("subject_prefix", sa.String(128)),
        sa.Column("created_at", WHEN, nullable=False),
        _key("spend_alert"),
        _owner("spend_alert", "organisation_id", "organisation"),
        _owner("spend_alert", "project_id", "project"),
        sa.CheckConstraint(
            f"threshold_nano BETWEEN 1 AND {MOST_NANO}", name="ck_spend_alert_threshold_nano"
        ),
    )
    op.create_index("ix_spend_alert_organisation_id", "spend_alert", ["organisation_id"])
    op.create_table(
        "alert_delivery",
        _id(),
        _id("alert_id"),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("body", sa.String(4096), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", WHEN, nullable=False),
        sa.Column("delivered_at", WHEN),
        _key("alert_delivery"),
        _owner("alert_delivery", "alert_id", "spend_alert", ondelete="CASCADE"),
        sa.UniqueConstraint("alert_id", "period", name="uq_alert_delivery_alert_id_period"),
    )


def _create_audit() -> None:
    op.create_table(
        "audit_event",
        _id(),
        _id("organisation_id"),
        sa.Column("number", sa.BigInteger, nullable=False),
        _id("project_id", null=True),
        sa.Column("at", WHEN, nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("actor_type", sa.String(16), nullable=False),
        sa.Column("actor_id", sa.String(64), nullable=False),
        sa.Column("object_id", sa.String(256), nullable=False),
        sa.Column("change", sa.JSON, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        _key("audit_event"),
    )
    op.create_index(
        "ix_audit_event_organisation_id_number",
        "audit_event",
        ["organisation_id", "number"],
        unique=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_event "
            "FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit_event "
            "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )


def downgrade() -> None:
    op.drop_table("audit_event")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only()")
    with op.batch_alter_table("api_key") as table:
        table.drop_constraint("fk_api_key_user_id_member", type_="foreignkey")
        table.drop_constraint("fk_api_key_service_account_id_service_account", type_="foreignkey")
        for name in ("service_account_id", "user_id", "replaces", *SCOPES):
            table.drop_column(name)
    op.execute("ALTER TABLE organisation DROP COLUMN plan_id")
    op.execute("ALTER TABLE organisation DROP COLUMN billing")
    for name in (
        "alert_delivery", "spend_alert", "credit", "plan", "budget", "quota", "project_member",
        "member", "service_account",
    ):  # fmt: skip
        op.drop_table(name)
