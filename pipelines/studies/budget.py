"""Budgets that are the same for every method: how many steps of each cost as much as training the reference.

Steps, tokens and operations are those of `finery plan`: tokens and operations with every sequence counted at its
longest, for all methods alike. Time is that of a step, measured on this machine before the cells run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from pipelines.core.costs import StagePlan
from pipelines.core.events import read_events
from pipelines.core.files import JSONObject
from pipelines.core.recipe import Recipe
from pipelines.core.results import folder_named, training_costs
from pipelines.core.study_cells import Cell, StudyRecipe
from pipelines.runs.planning.plan import plan

UNITS = {"steps": "steps", "tokens": "tokens", "flops": "FLOP", "time": "s"}
FEWEST = 3
"""Times between two steps that a median is taken of."""


@dataclass(frozen=True)
class CellBudget:
    """What one cell may spend."""

    stage: str
    steps: int | None
    """None: it trains as its recipe says, for it is the reference."""
    spent: float
    """In the unit that is matched."""
    budget: float
    """The reference's."""

    @property
    def values(self) -> dict[str, Any]:
        """The override that makes it so."""
        return {} if self.steps is None else {f"stages.{self.stage}.arguments.max_steps": self.steps}

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"stage": self.stage, "max_steps": self.steps, "spent": self.spent, "budget": self.budget}


class UnmatchedBudgetError(Exception):
    """Why a cell's budget cannot be known."""


Recipes = Callable[[Cell, JSONObject], Recipe]
"""The recipe of a cell with what the search found, and with these values beside."""


def match_budget(
    study: StudyRecipe, cell: Cell, recipes: Recipes, step_seconds: Callable[[Cell], float | None]
) -> CellBudget:
    """How many steps a cell gets. Raises UnmatchedBudgetError.

    `step_seconds` gives the measured time of a cell's step; it is asked only where time is matched.
    """
    budget = study.options.budget
    assert budget is not None
    unit, other = budget.match, study.partner(cell)
    if other.refusal:
        raise UnmatchedBudgetError(f"the cell that its budget comes from is refused: {other.refusal}")
    target = study.budgeted(other)
    reference = _planned(recipes(other, {}), target)
    if reference.steps is None:
        raise UnmatchedBudgetError(
            f"how many steps the reference takes is not known before it runs ({_why(reference)}); set "
            f"arguments.max_steps of '{target}'"
        )
    total = _per_step(study, other, unit, recipes, step_seconds) * reference.steps
    if other is cell:
        return CellBudget(target, None, total, total)
    own = _per_step(study, cell, unit, recipes, step_seconds)
    steps = int(total / own + 1e-9)
    if steps < 1:
        raise UnmatchedBudgetError(f"one step takes {own:.3g} {UNITS[unit]}, more than the whole budget of {total:.3g}")
    return CellBudget(study.budgeted(cell), steps, steps * own, total)


def _planned(recipe: Recipe, target: str) -> StagePlan:
    return next(each for each in plan(recipe).stages if each.id == target)


def _per_step(
    study: StudyRecipe, cell: Cell, unit: str, recipes: Recipes, step_seconds: Callable[[Cell], float | None]
) -> float:
    """What one step costs in the unit, whatever the number of rows."""
    target = study.budgeted(cell)
    if unit == "steps":
        return 1.0
    if unit == "time":
        seconds = step_seconds(cell)
        if seconds is None or seconds <= 0:
            raise UnmatchedBudgetError(f"the time of a step of '{target}' could not be measured")
        return seconds
    planned = _planned(recipes(cell, {f"stages.{target}.arguments.max_steps": 1}), target)
    amount = planned.tokens if unit == "tokens" else planned.flops
    if amount is None:
        raise UnmatchedBudgetError(
            f"the {'tokens' if unit == 'tokens' else 'operations'} of '{target}' cannot be counted ({_why(planned)})"
        )
    return float(amount)


def _why(planned: StagePlan) -> str:
    return planned.notes[-1] if planned.notes else "the plan does not know it"


def measured_seconds(folder: Path, stage: str) -> float | None:
    """Seconds of a step, from what a probe left: the median of the times between steps, so that neither the first
    nor a disturbed one counts."""
    times: dict[int, datetime] = {}
    for event in read_events(folder / "events.jsonl"):
        if event.get("stage") == stage and event["event"] == "metric" and "loss" in event.get("metrics", {}):
            times[int(event["step"])] = datetime.fromisoformat(event["time"])
    between = [(times[step] - times[step - 1]).total_seconds() for step in times if step - 1 in times]
    if len(between) >= FEWEST:
        return median(between)
    trained = folder_named(folder, stage)  # made by another run, or logged more rarely
    costs = {} if trained is None else training_costs(trained)
    steps = costs.get("train_steps")
    return costs["train_runtime"] / steps if steps and "train_runtime" in costs else None


def sentence(match: str, reference: str, stage: str) -> str:
    """What was made equal, for the table's reader."""
    how = {
        "steps": "the same number of optimizer steps",
        "tokens": "the same number of tokens (padding counted)",
        "flops": "the same number of operations (as finery plan counts them)",
        "time": "the same time, by the measured time of a step",
    }[match]
    return f"Every method trains '{stage}' for {how} as {reference}; what the search spent is not counted."
