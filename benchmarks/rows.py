"""Rows of the table of performance: what each benchmark measured, printed for a reader and kept for `performance.py`.

A row compares Finery with one named peer on one piece of work, measured in the same run. `ratio` is how many times as
fast Finery is, or how many times less memory it needs: above 1 is better. `equal` says what was checked to be the same.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

ROWS = "FINERY_BENCHMARK_ROWS"
"""Names the file that rows are added to, one JSON object a line."""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    work: str
    peer: str
    theirs: float
    ours: float
    unit: str
    """Of both: smaller is better, but for what ends with `a second`."""
    equal: str
    """What was checked to be equal in the same run."""
    goal: float | None = None
    """The ratio that is wanted."""

    @property
    def ratio(self) -> float:
        """How many times better Finery is."""
        return self.ours / self.theirs if self.unit.endswith("a second") else self.theirs / self.ours


def report(row: Row) -> None:
    """Print a row, and keep it where the environment asks for that."""
    print(
        f"{row.work}: Finery {row.ours:.4g} {row.unit}, {row.peer} {row.theirs:.4g}; ratio {row.ratio:.2f}; {row.equal}",
        flush=True,
    )
    path = os.environ.get(ROWS)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
