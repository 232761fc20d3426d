"""Projects, tokens, hosts, and jobs with their attempts, leases and events."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def words(name: str, required: bool = True, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=not required, **options)


def moment(name: str, required: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=not required)


def whole(name: str, required: bool = True, large: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger() if large else sa.Integer(), nullable=not required)


def json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "projects",
        words("name"),
        sa.Column("weight", sa.Double(), nullable=False),
        whole("max_gpus", required=False),
        whole("max_running", required=False),
        whole("max_queued", required=False),
        json("settings"),
        moment("created", required=True),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.create_table(
        "tokens",
        words("id"),
        words("prefix"),
        words("sha256"),
        words("project"),
        words("role"),
        words("name"),
        moment("created", required=True),
        moment("expires"),
        moment("revoked"),
        moment("last_used"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_tokens_project_projects"),
        sa.UniqueConstraint("prefix", name="uq_tokens_prefix"),
    )
    op.create_table(
        "jobs",
        words("id"),
        words("project"),
        words("kind"),
        words("name"),
        words("recipe"),
        json("overrides"),
        json("resources"),
        json("depends_on"),
        json("secrets"),
        json("openai"),
        words("digest"),
        words("idempotency_key", required=False),
        words("submitted_by"),
        whole("asked_priority"),
        moment("deadline"),
        moment("expected_seconds"),
        whole("max_retries"),
        words("state"),
        words("reason", required=False),
        words("message"),
        whole("priority"),
        moment("created", required=True),
        moment("updated", required=True),
        moment("started"),
        moment("finished"),
        moment("not_before", required=True),
        whole("retries"),
        whole("preemptions"),
        words("attempt", required=False),
        whole("attempts"),
        whole("last_event", large=True),
        json("progress"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_jobs_project_projects"),
        sa.UniqueConstraint("project", "idempotency_key", name="uq_jobs_project_idempotency_key"),
    )
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"])
    op.create_index("ix_jobs_project_state_id", "jobs", ["project", "state", "id"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])
    op.create_index("ix_jobs_updated", "jobs", ["updated"])
    op.create_table(
        "attempts",
        words("id"),
        words("job"),
        whole("number"),
        whole("fencing", large=True),
        words("executor"),
        json("placement"),
        json("resources"),
        words("state"),
        json("handle"),
        moment("created", required=True),
        moment("started"),
        moment("ended"),
        whole("exit_code", required=False),
        words("reason", required=False),
        words("message"),
        whole("ingested", large=True),
        whole("offset", large=True),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_attempts_job_jobs"),
        sa.UniqueConstraint("job", "number", name="uq_attempts_job_number"),
    )
    op.create_index("ix_attempts_state", "attempts", ["state"])
    op.create_table(
        "leases",
        words("name"),
        words("holder"),
        whole("fencing", large=True),
        moment("expires", required=True),
        words("attempt", required=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_index("ix_leases_holder", "leases", ["holder"])
    op.create_table(
        "events",
        words("job"),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        moment("time", required=True),
        words("event"),
        words("stage", required=False),
        whole("step", required=False, large=True),
        words("attempt", required=False),
        json("fields"),
        sa.PrimaryKeyConstraint("job", "id", name="pk_events"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_events_job_jobs"),
    )
    op.create_table(
        "hosts",
        words("name"),
        words("executor"),
        whole("cpus"),
        whole("memory", large=True),
        words("state"),
        moment("seen", required=True),
        json("info"),
        sa.PrimaryKeyConstraint("name", name="pk_hosts"),
    )
    op.create_table(
        "gpu_slots",
        words("host"),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        words("kind"),
        whole("memory", large=True),
        words("uuid"),
        sa.Column("present", sa.Boolean(), nullable=False),
        words("attempt", required=False),
        sa.PrimaryKeyConstraint("host", "number", name="pk_gpu_slots"),
        sa.ForeignKeyConstraint(["host"], ["hosts.name"], name="fk_gpu_slots_host_hosts"),
    )


def downgrade() -> None:
    for table in ("gpu_slots", "hosts", "events", "leases", "attempts", "jobs", "tokens", "projects"):
        op.drop_table(table)
