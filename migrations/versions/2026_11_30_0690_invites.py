"""Invitations to an organisation, accepted by whoever the sign-in service vouches for."""

import sqlalchemy as sa
from alembic import op

revision = "invites"
down_revision = "request_texts"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)
ROLES = "role IN ('owner', 'admin', 'billing', 'developer', 'viewer')"


def upgrade() -> None:
    op.create_table(
        "invite",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("organisation_id", sa.String(40), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("projects", sa.JSON(), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        sa.Column("accepted_at", WHEN),
        sa.Column("user_id", sa.String(40)),
        sa.PrimaryKeyConstraint("id", name="pk_invite"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisation.id"], name="fk_invite_organisation_id_organisation"
        ),
        sa.CheckConstraint(ROLES, name="ck_invite_role"),
    )
    op.create_index("ix_invite_email", "invite", ["email"])
    op.create_index(
        "ix_invite_organisation_id_created_at", "invite", ["organisation_id", "created_at"]
    )


def downgrade() -> None:
    op.drop_table("invite")
