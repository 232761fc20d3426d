"""The texts of a column: what is not a text is an error, what is empty is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


def texts_of(rows: Dataset, column: str, described: str) -> list[str]:
    """The texts of `column` that hold more than white space, in their order. Raises DataError."""
    cells = rows[column][:]
    for number, cell in enumerate(cells, start=1):
        if cell is not None and not isinstance(cell, str):
            raise DataError(
                f"{described}, row {number}, holds {str(cell)[:40]!r} ({type(cell).__name__}) in the column "
                f"'{column}', must be a text; name the column of the text with 'text'"
            )
    texts = [cell for cell in cells if cell is not None and cell.strip()]
    if not texts:
        raise DataError(f"{described} has no text in the column '{column}': all {len(cells)} cells are empty")
    return texts
