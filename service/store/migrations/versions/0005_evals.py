"""Evals with their runs and rows, and permissions to ask another project's model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _json(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.JSON(), nullable=False) for name in names]


def _belongs(table: str, column: str, other: str, key: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{other}.{key}"], name=f"fk_{table}_{column}_{other}")


def upgrade() -> None:
    op.create_table(
        "model_permissions",
        *_texts("id", "owner", "model", "project", "created_by"),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_model_permissions"),
        _belongs("model_permissions", "owner", "projects", "name"),
        _belongs("model_permissions", "project", "projects", "name"),
        sa.UniqueConstraint("owner", "model", "project", name="uq_model_permissions_owner_model_project"),
    )
    op.create_index("ix_model_permissions_project_model", "model_permissions", ["project", "model"])
    op.create_table(
        "evals",
        *_texts("id", "project", "name"),
        *_json("data_source_config", "testing_criteria", "metadata"),
        *_texts("created_by"),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_evals"),
        _belongs("evals", "project", "projects", "name"),
    )
    op.create_index("ix_evals_project_id", "evals", ["project", "id"])
    op.create_index("ix_evals_project_updated", "evals", ["project", "updated"])
    op.create_table(
        "eval_runs",
        *_texts("id", "eval", "project", "name", "state"),
        *_json("data_source", "metadata"),
        *_texts("model"),
        *_json("summary", "error"),
        sa.Column("items", sa.Integer(), nullable=False),
        *_texts("created_by", "role"),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("started", sa.Double()),
        sa.Column("finished", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_eval_runs"),
        _belongs("eval_runs", "eval", "evals", "id"),
        _belongs("eval_runs", "project", "projects", "name"),
    )
    op.create_index("ix_eval_runs_eval_id", "eval_runs", ["eval", "id"])
    op.create_index("ix_eval_runs_state_id", "eval_runs", ["state", "id"])
    op.create_index("ix_eval_runs_project_state", "eval_runs", ["project", "state"])
    op.create_table(
        "eval_items",
        *_texts("run"),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        *_texts("state"),
        *_json("item", "given", "sample", "results"),
        sa.Column("done", sa.Double()),
        sa.PrimaryKeyConstraint("run", "number", name="pk_eval_items"),
        _belongs("eval_items", "run", "eval_runs", "id"),
    )
    op.create_index("ix_eval_items_run_state_number", "eval_items", ["run", "state", "number"])


def downgrade() -> None:
    for name in ("eval_items", "eval_runs", "evals", "model_permissions"):
        op.drop_table(name)
