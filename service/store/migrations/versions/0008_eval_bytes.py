"""Evals and their runs count for a project's quota on the disk: the bytes that the database keeps of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BESIDE = 256
"""What a row takes beside its JSON."""
COUNTED = (
    ("evals", ("data_source_config", "testing_criteria", "metadata"), ""),
    (
        "eval_runs",
        ("data_source", "metadata"),
        "COALESCE((SELECT SUM({item}) FROM eval_items WHERE eval_items.run = eval_runs.id), 0)",
    ),
)
ITEM = ("item", "given", "sample", "results")


def upgrade() -> None:
    for table, columns, items in COUNTED:
        op.add_column(table, sa.Column("bytes", sa.BigInteger(), nullable=False, server_default="0"))
        parts = [_size(columns), *([items.format(item=_size(ITEM))] if items else [])]
        op.execute(sa.text(f"UPDATE {table} SET bytes = {' + '.join(parts)}"))


def _size(columns: tuple[str, ...]) -> str:
    """JSON is kept as ASCII: a character is a byte."""
    return " + ".join([str(BESIDE), *(f"LENGTH(CAST({name} AS TEXT))" for name in columns)])


def downgrade() -> None:
    for table, _, _ in COUNTED:
        op.drop_column(table, "bytes")
