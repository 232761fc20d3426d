"""Quotas on the disk: how much a project may keep, and what was measured of what it keeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("max_bytes", sa.BigInteger()))
    op.create_table(
        "disk_usage",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("thing", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", "kind", "thing", name="pk_disk_usage"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_disk_usage_project_projects"),
    )


def downgrade() -> None:
    op.drop_table("disk_usage")
    op.drop_column("projects", "max_bytes")
