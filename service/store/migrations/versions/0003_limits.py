"""Limits: a job's running time and how long it is kept, lines that were skipped, room for uploads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MODELS_JOB = "fk_models_job_jobs"
"""A published model stays when its job is deleted."""


def upgrade() -> None:
    op.add_column("jobs", sa.Column("max_seconds", sa.Double()))
    op.add_column("jobs", sa.Column("ttl_seconds_after_finished", sa.Double()))
    op.add_column("jobs", sa.Column("attempts_before_retry", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("skipped_lines", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("files", sa.Column("reserved", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(sa.text('UPDATE files SET reserved = COALESCE(bytes, "offset")'))
    op.create_index("ix_jobs_finished", "jobs", ["finished"])
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_sessions"),
    )
    with op.batch_alter_table("models") as models:
        models.drop_constraint(MODELS_JOB, type_="foreignkey")


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM models WHERE job NOT IN (SELECT id FROM jobs)"))
    with op.batch_alter_table("models") as models:
        models.create_foreign_key(MODELS_JOB, "jobs", ["job"], ["id"])
    op.drop_table("ended_sessions")
    op.drop_index("ix_jobs_finished", "jobs")
    op.drop_column("files", "reserved")
    op.drop_column("attempts", "skipped_lines")
    for name in ("attempts_before_retry", "ttl_seconds_after_finished", "max_seconds"):
        op.drop_column("jobs", name)
