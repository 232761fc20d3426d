"""The registry: versions and aliases of a name, deletion with a grace period, comparisons; which models jobs use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

UNIQUE = "uq_models_project_name_version"
NUMBERED = """
UPDATE models SET version = (
    SELECT count(*) FROM models AS earlier
    WHERE earlier.project = models.project AND earlier.name = models.name AND earlier.id <= models.id
)
"""
"""What is there keeps its order: the first publication of a name is version 1."""
NAMED = """
INSERT INTO model_names (project, name, last_version, benchmark, metric)
SELECT project, name, max(version), '', '' FROM models GROUP BY project, name
"""


def upgrade() -> None:
    op.add_column("jobs", sa.Column("models", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("models", sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("models", sa.Column("deleted", sa.Double()))
    op.execute(sa.text(NUMBERED))
    with op.batch_alter_table("models") as models:
        models.create_unique_constraint(UNIQUE, ["project", "name", "version"])
    op.create_index("ix_models_deleted", "models", ["deleted"])
    op.create_table(
        "model_names",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name="pk_model_names"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_model_names_project_projects"),
    )
    op.execute(sa.text(NAMED))
    op.create_table(
        "model_aliases",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("project", "name", "alias", "model", "set_by")),
        sa.Column("set", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", "alias", name="pk_model_aliases"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_model_aliases_project_projects"),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name="fk_model_aliases_model_models"),
    )
    op.create_index("ix_model_aliases_model", "model_aliases", ["model"])
    op.create_table(
        "model_comparisons",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("against", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", "against", name="pk_model_comparisons"),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name="fk_model_comparisons_model_models"),
        sa.ForeignKeyConstraint(["against"], ["models.id"], name="fk_model_comparisons_against_models"),
    )


def downgrade() -> None:
    for name in ("model_comparisons", "model_aliases", "model_names"):
        op.drop_table(name)
    op.execute(sa.text("DELETE FROM models WHERE deleted IS NOT NULL"))
    op.drop_index("ix_models_deleted", "models")
    with op.batch_alter_table("models") as models:
        models.drop_constraint(UNIQUE, type_="unique")
        models.drop_column("deleted")
        models.drop_column("version")
    op.drop_column("jobs", "models")
