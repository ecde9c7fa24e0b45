"""Who may sign in to the dashboard, and which browsers are."""

import sqlalchemy as sa
from alembic import op

revision = "logins"
down_revision = "weights"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
LIVE = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "login",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("user_id", sa.String(40)),
        sa.Column("email", sa.String(254)),
        sa.Column("password", sa.String(256), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("changed_at", WHEN, nullable=False),
        sa.Column("ended_at", WHEN),
        sa.PrimaryKeyConstraint("id", name="pk_login"),
        sa.ForeignKeyConstraint(["user_id"], ["member.id"], name="fk_login_user_id_member"),
        sa.CheckConstraint("(user_id IS NULL) = (email IS NOT NULL)", name="ck_login_whose"),
    )
    for name in ("user_id", "email"):
        op.create_index(
            f"uq_login_{name}",
            "login",
            [name],
            unique=True,
            sqlite_where=LIVE,
            postgresql_where=LIVE,
        )
    op.create_table(
        "sign_in",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("login_id", sa.String(40), nullable=False),
        *(sa.Column(name, WHEN, nullable=False) for name in ("begun_at", "seen_at", "expires_at")),
        sa.Column("browser", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_sign_in"),
        sa.ForeignKeyConstraint(["login_id"], ["login.id"], name="fk_sign_in_login_id_login"),
    )
    for name in ("login_id", "expires_at"):
        op.create_index(f"ix_sign_in_{name}", "sign_in", [name])


def downgrade() -> None:
    for table in ("sign_in", "login"):
        op.drop_table(table)
