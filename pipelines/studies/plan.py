"""What a study will cost: the plan of one cell of each row, and the time of all, shared stages counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.core.config import ConfigIssues
from pipelines.core.costs import StagePlan
from pipelines.core.files import JSONObject
from pipelines.core.pages import count, seconds, size
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.study_cells import Cell, StudyRecipe, Values, named
from pipelines.runs import hardware
from pipelines.runs.fingerprints import digest
from pipelines.runs.planning.plan import Plan, plan
from pipelines.studies.budget import CellBudget, UnmatchedBudgetError, match_budget
from pipelines.studies.search import rungs


@dataclass(frozen=True)
class RowPlan:
    """One row of the study's table."""

    labels: Mapping[str, str]
    cells: int
    trained: StagePlan | None
    """The last stage that trains: what tells the methods apart."""
    budget: CellBudget | None = None
    """What matches its budget; None too where that is known when the study runs."""
    unmatched: str = ""
    """Why it is not known here, or at all."""


@dataclass(frozen=True)
class StudyPlan:
    """The costs of a study, one run after the other."""

    name: str
    device: str
    rate: str
    cells: int
    refused: tuple[tuple[str, str], ...]
    """(cell, why) of those that cannot run."""
    trials: int
    rows: tuple[RowPlan, ...]
    seconds: float | None
    """Of all cells; None when a stage is unknown. Processes take some seconds more each to start."""
    known_seconds: float
    """Of their stages whose time is known."""
    search_seconds: float | None
    known_search_seconds: float

    def to_json(self) -> JSONObject:
        """As plain data."""
        return {
            "name": self.name,
            "device": self.device,
            "rate": self.rate,
            "cells": self.cells,
            "trials": self.trials,
            "refused": [{"cell": cell, "message": why} for cell, why in self.refused],
            "seconds": self.seconds,
            "known_seconds": self.known_seconds,
            "search_seconds": self.search_seconds,
            "known_search_seconds": self.known_search_seconds,
            "rows": [
                {
                    "labels": dict(row.labels),
                    "cells": row.cells,
                    "stage": row.trained.to_json() if row.trained else None,
                    "budget": row.budget.to_json() if row.budget else None,
                }
                for row in self.rows
            ],
        }

    def lines(self) -> list[str]:
        """As text."""
        text = [
            f"{self.name} on {self.device}: a study of {self.cells} cells"
            + (f" after {self.trials} trials" if self.trials else ""),
            f"rate: {self.rate}",
            "",
        ]
        for row in self.rows:
            parts = [f"{row.cells} cell{'s' if row.cells != 1 else ''}"]
            if row.trained is not None:
                if row.trained.trainable_parameters is not None:
                    parts.append(
                        f"learns {count(row.trained.trainable_parameters)} of {count(row.trained.all_parameters)}"
                    )
                if row.trained.memory is not None:
                    parts.append(f"memory {size(row.trained.memory.peak)}")
                if row.trained.seconds is not None:
                    parts.append(f"training about {seconds(row.trained.seconds)} each")
                parts += [note for note in row.trained.notes if "cannot be built" in note or "known" in note][:1]
            if row.budget is not None and row.budget.steps is not None:
                parts.append(f"{row.budget.steps:,} steps of '{row.budget.stage}' by its budget")
            if row.unmatched:
                parts.append(row.unmatched)
            text.append(f"  {named(row.labels) or 'all'}: {', '.join(parts)}")
        text += [f"  refused: {cell}: {why}" for cell, why in self.refused]
        if self.trials:
            text += ["", f"search {_about(self.search_seconds, self.known_search_seconds)}"]
        cells = f"cells {_about(self.seconds, self.known_seconds)}, shared stages counted once"
        return [*text, *([] if self.trials else [""]), cells]


def _about(whole: float | None, known: float) -> str:
    """How long something takes of which `known` seconds are known."""
    if whole is None:
        return f"about {seconds(known)} without the stages whose time is not known" if known else "of unknown time"
    return f"about {seconds(known)}"


def plan_study(
    study: StudyRecipe, flops_per_second: float | None = None, device: hardware.Device | None = None
) -> StudyPlan:
    """The costs of a study. Cells that differ by their seed alone cost the same; a stage that several share is
    done once. Budgets are matched as far as they are known before a run."""
    names = [axis.name for axis in study.axes if not axis.repeats]
    rows: dict[tuple[str, ...], list[Cell]] = {}
    for cell in study.cells:
        if not cell.refusal:
            rows.setdefault(tuple(cell.labels[name] for name in names), []).append(cell)
    done: set[str] = set()
    total, planned, costs_of_row = _Sum(), [], None
    matched: dict[int, Values] = {}
    for key, cells in rows.items():
        own, why = _budget(study, cells[0])
        matched |= {cell.number: own.values for cell in cells if own is not None}
        recipes = [cell.recipe if own is None else study.final(cell, {}, own.values) for cell in cells]
        costs_of_row = plan(recipes[0], flops_per_second, device)
        for recipe in recipes:
            total.add(recipe, costs_of_row, done)
        trained = [each for each, stage in zip(costs_of_row.stages, recipes[0].stages, strict=True) if stage.trains]
        labels = dict(zip(names, key, strict=True))
        planned.append(RowPlan(labels, len(cells), trained[-1] if trained else None, own, why))
    assert costs_of_row is not None
    searched, trials = _Sum(), 0
    search = study.options.search
    for group in study.groups if search is not None else ():
        assert search is not None
        left = len(group.grid)
        steps = rungs(search)
        budgets = next(iter(search.halving.values())) if search.halving else (1,)
        for rung, budget in enumerate(steps):
            recipes = [
                study.trial(
                    group, values, budget, cell, matched.get(cell.number) if study.matched_first(cell) else None
                )
                for values in group.grid[:left]
                for cell in group.repeats
            ]
            costs = plan(recipes[0], flops_per_second, device)
            for recipe in recipes:
                searched.add(recipe, costs, done)
            trials += len(recipes)
            if rung + 1 < len(steps):
                left = max(1, -int(-left * budgets[rung] // budgets[rung + 1]))
    refused = tuple((cell.folder, cell.refusal) for cell in study.refused)
    return StudyPlan(
        study.recipe.name,
        costs_of_row.device,
        costs_of_row.rate,
        len(study.cells),
        refused,
        trials,
        tuple(planned),
        total.seconds,
        total.known,
        searched.seconds if search else None,
        searched.known,
    )


def _budget(study: StudyRecipe, cell: Cell) -> tuple[CellBudget | None, str]:
    """(what matches the budget of a cell, why that is not known here)."""
    if study.options.budget is None:
        return None, ""
    if study.options.budget.match == "time":
        return None, "its steps are matched when a step has been timed"
    try:
        return match_budget(study, cell, lambda each, more: study.final(each, {}, more), lambda each: None), ""
    except (UnmatchedBudgetError, ConfigIssues) as error:
        return None, f"its budget cannot be matched: {error}"


class _Sum:
    """Seconds of stages that were not counted before."""

    def __init__(self) -> None:
        self.seconds: float | None = 0.0
        self.known = 0.0
        """Of those whose time is known."""

    def add(self, recipe: Recipe, costs: Plan, done: set[str]) -> None:
        for stage, each in zip(recipe.stages, costs.stages, strict=True):
            fingerprint = same_work(recipe, stage)
            if fingerprint in done or stage.stage == "publish":
                continue
            done.add(fingerprint)
            self.seconds = None if self.seconds is None or each.seconds is None else self.seconds + each.seconds
            self.known += each.seconds or 0.0


def same_work(recipe: Recipe, stage: Stage) -> str:
    """What makes a stage the same work in two recipes, as far as the recipes tell."""
    reads = [same_work(recipe, recipe.stage(name)) if name != "model" else "" for name in stage.reads(recipe)]
    model = recipe.model.plain() if not reads or "" in reads else None
    return digest(
        [stage.identity(), recipe.seed_of(stage), reads, model, recipe.tokenizer.plain() if recipe.tokenizer else None]
    )
