"""The audit trail: who did what; the database itself refuses to change a row of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

REFUSED = "the audit trail is append-only"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("action", "actor", "role", "actor_project", "address", "request", "kind", "thing")
        ),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_time", "audit", ["time"])
    for name in ("action", "actor", "project", "thing"):
        op.create_index(f"ix_audit_{name}_id", "audit", [name, "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION finery_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
            f"'{REFUSED}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION "
            "finery_audit_refuse()"
        )
    else:
        op.execute(
            f"CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION finery_audit_refuse()")
