"""Uploaded files, and what jobs bring forth: finished stages, published models and scores."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def words(name: str, required: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=not required)


def number(name: str, required: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=not required)


def whole(name: str, required: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=not required)


def json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "stage_results",
        words("job"),
        words("stage"),
        words("attempt"),
        words("fingerprint"),
        number("seconds"),
        sa.Column("reused", sa.Boolean(), nullable=False),
        json("metrics"),
        number("finished"),
        sa.PrimaryKeyConstraint("job", "stage", name="pk_stage_results"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_stage_results_job_jobs"),
    )
    op.create_table(
        "files",
        words("id"),
        words("project"),
        words("filename"),
        words("purpose"),
        words("state"),
        whole("bytes", required=False),
        words("sha256", required=False),
        whole("offset"),
        words("created_by"),
        number("created"),
        number("completed", required=False),
        json("openai"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_files_project_projects"),
    )
    op.create_index("ix_files_project_id", "files", ["project", "id"])
    op.create_index("ix_files_project_sha256", "files", ["project", "sha256"])
    op.create_table(
        "models",
        words("id"),
        words("project"),
        words("name"),
        words("fingerprint"),
        words("job"),
        words("path"),
        words("base"),
        whole("parameters", required=False),
        json("scores"),
        json("openai"),
        number("created"),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_models_project_projects"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_models_job_jobs"),
        sa.UniqueConstraint("project", "name", "fingerprint", name="uq_models_project_name_fingerprint"),
    )
    op.create_index("ix_models_project_id", "models", ["project", "id"])
    op.create_table(
        "scores",
        words("job"),
        words("stage"),
        words("benchmark"),
        words("metric"),
        words("project"),
        number("value"),
        number("created"),
        sa.PrimaryKeyConstraint("job", "stage", "benchmark", "metric", name="pk_scores"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_scores_job_jobs"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_scores_project_projects"),
    )
    op.create_index("ix_scores_project_benchmark_metric_value", "scores", ["project", "benchmark", "metric", "value"])


def downgrade() -> None:
    for table in ("scores", "models", "files", "stage_results"):
        op.drop_table(table)
