"""Files of projects, and batches of requests that are read from one and answered into others."""

import sqlalchemy as sa
from alembic import op

revision = "files_and_batches"
down_revision = "roles"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
STATES = (
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "file",
        sa.Column("id", sa.String(48), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("filename", sa.String(256), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("nbytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_file"),
        _project("file"),
        sa.CheckConstraint(
            "purpose IN ('batch', 'batch_output', 'user_data')", name="ck_file_purpose"
        ),
        sa.CheckConstraint("nbytes >= 0", name="ck_file_nbytes"),
    )
    op.create_index("ix_file_project_id_created_at", "file", ["project_id", "created_at"])
    op.create_index("ix_file_expires_at", "file", ["expires_at"])
    op.create_table(
        "batch",
        sa.Column("id", sa.String(48), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("input_file", sa.String(48), nullable=False),
        sa.Column("output_file", sa.String(48)),
        sa.Column("error_file", sa.String(48)),
        sa.Column("output_seconds", sa.Integer),
        sa.Column("labels", sa.Text),
        sa.Column("errors", sa.Text),
        sa.Column("model", sa.String(256)),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("total", "completed", "failed")),
        *(
            sa.Column(f"{name}_tokens", sa.BigInteger, nullable=False)
            for name in ("prompt", "cached", "completion")
        ),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        *(
            sa.Column(f"{name}_at", WHEN)
            for name in ("in_progress", "finalizing", "cancelling", "ended")
        ),
        sa.Column("owner", sa.String(40)),
        sa.Column("held_until", WHEN),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_batch"),
        _project("batch"),
        sa.CheckConstraint(f"state IN ({', '.join(map(repr, STATES))})", name="ck_batch_state"),
    )
    op.create_index("ix_batch_project_id_created_at", "batch", ["project_id", "created_at"])
    op.create_index("ix_batch_state_created_at", "batch", ["state", "created_at"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.String(48), nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("request", sa.String(40), nullable=False),
        sa.Column("begun_at", WHEN, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("failed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_line"),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name="fk_batch_line_batch_id_batch"),
    )


def downgrade() -> None:
    for table in ("batch_line", "batch", "file"):
        op.drop_table(table)


def _project(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["project_id"], ["project.id"], name=f"fk_{table}_project_id_project"
    )
