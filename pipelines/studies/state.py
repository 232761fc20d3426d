"""How far a study is: its cells, the trials of its search, and what each cell may spend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipelines.core.recipe import Recipe
from pipelines.core.study_cells import Cell, StudyRecipe, Values
from pipelines.studies.budget import CellBudget
from pipelines.studies.search import Trial


@dataclass
class CellState:
    """How far a cell is."""

    cell: Cell
    status: str = "queued"
    """`queued`, `running`, `done`, `reused`, `failed`, `refused` or `stopped`."""
    message: str = ""
    seconds: float = 0.0
    chosen: Values = field(default_factory=dict)
    """What the search found for it."""
    matched: CellBudget | None = None
    """What it may spend, where budgets are matched."""

    @property
    def complete(self) -> bool:
        """Whether it has results."""
        return self.status in ("done", "reused")


@dataclass
class StudyState:
    """A study, its folder and how far it is."""

    plan: StudyRecipe
    folder: Path
    states: list[CellState] = field(default_factory=list)
    tried: dict[int, list[Trial]] = field(default_factory=dict)
    """Trials by number of the group."""
    edges: dict[int, str] = field(default_factory=dict)
    """What is to be said of a group whose winner stands at the edge of its grid."""

    def __post_init__(self) -> None:
        self.states = self.states or [
            CellState(cell, "refused" if cell.refusal else "queued", cell.refusal) for cell in self.plan.cells
        ]

    def recipe_of(self, state: CellState, more: Values | None = None) -> Recipe:
        """The recipe of a cell with everything that was found for it, and `more`. Raises ConfigIssues."""
        values = more if more is not None else state.matched.values if state.matched else {}
        return self.plan.final(state.cell, state.chosen, values)
