"""The table of a study: one row a method and benchmark, over its seeds, held against the reference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.files import whole_file, write_json, write_text
from pipelines.core.scores import bounds, smaller_is_better
from pipelines.core.study_matrix import Axis
from pipelines.core.study_options import reference_axis
from pipelines.evaluation.resampling import Estimate, mean_interval, paired_difference
from pipelines.metrics.statistics import SIGNIFICANCE_LEVEL as SIGNIFICANT
from pipelines.metrics.statistics import Correction, corrected
from pipelines.reports.results import SEED, Result, curve_of, results_of
from pipelines.studies.budget import UNITS, sentence

if TYPE_CHECKING:
    from pipelines.studies.study import CellState, Study

MOST_CURVES = 60
"""Points kept of a learning curve."""


@dataclass(frozen=True)
class Figure:
    """One metric of a row."""

    mean: float
    sd: float | None
    """Over seeds; None with one."""
    values: tuple[float, ...]
    """One a seed."""
    interval: tuple[float, float] | None
    """95 %, over examples and seeds, within what the metric can be."""
    difference: Estimate | None = None
    """From the reference, paired."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        difference = None
        if self.difference is not None:
            difference = {
                "value": self.difference.value,
                "interval": [self.difference.low, self.difference.high],
                "clear": self.difference.clear,
                "p": self.difference.p,
            }
        return {
            "mean": self.mean,
            "sd": self.sd,
            "values": list(self.values),
            "interval": list(self.interval) if self.interval else None,
            "difference": difference,
        }


@dataclass
class Row:
    """One method on one benchmark."""

    labels: dict[str, str]
    name: str = ""
    """The entry of the key that is compared: that of the reference, else the last that is no seed."""
    benchmark: str = ""
    """Empty where no cell of the row is complete yet."""
    stage: str = ""
    """The evaluate stage."""
    model: str = ""
    expected: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Cells by how far they are."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """What the search found."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """By metric; the first is the one to compare by."""
    costs: dict[str, float] = field(default_factory=dict)
    """Means over the seeds."""
    is_reference: bool = False
    examples: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(step, mean training loss over the seeds)."""
    band: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, least and largest training loss of a seed); empty with one seed."""
    message: str = ""
    """Why cells are missing."""
    budget: dict[str, Any] | None = None
    """What each cell may spend: `stage`, `max_steps`, `spent`, `budget`; None where budgets are not matched."""
    p_corrected: float | None = None
    """Of the main score's difference, corrected for all rows that are held against the reference."""
    results: Mapping[tuple[str, ...], Result] = field(default_factory=dict, repr=False)
    """What the figures are the means of, by the entries of the keys that repeat."""

    @property
    def main(self) -> str | None:
        """The metric to compare by."""
        return next(iter(self.figures), None)

    @property
    def share(self) -> float | None:
        """Part of the weights that learn."""
        whole = self.costs.get("all_parameters")
        return self.costs["trainable_parameters"] / whole if whole and "trainable_parameters" in self.costs else None

    def verdict(self, metric: str | None = None) -> str:
        """`reference`, `better`, `worse`, `inside the noise`, or nothing where nothing can be said."""
        if self.is_reference:
            return "reference"
        name = metric or self.main
        found = self.figures[name].difference if name in self.figures else None
        if found is None:
            return ""
        if not found.clear or (name == self.main and self.p_corrected is not None and self.p_corrected > SIGNIFICANT):
            return "inside the noise"
        return "better" if (found.value > 0) != smaller_is_better(name) else "worse"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "labels": self.labels,
            "benchmark": self.benchmark,
            "stage": self.stage,
            "model": self.model,
            "expected": self.expected,
            "counts": self.counts,
            "chosen": self.chosen,
            "metric": self.main,
            "metrics": {name: each.to_json() for name, each in self.figures.items()},
            "costs": self.costs,
            "trainable_share": self.share,
            "reference": self.is_reference,
            "verdict": self.verdict(),
            "p_corrected": self.p_corrected,
            "budget": self.budget,
            "examples": self.examples,
            "message": self.message,
        }


def compared_axis(axes: Sequence[Axis], reference: str | None) -> str:
    """The key whose entries are held against each other: that of the reference, else the last that is no seed."""
    axis = reference_axis(reference, tuple(axes)) if reference else None
    names = [each.name for each in axes if not each.repeats]
    return axis.name if axis else names[-1] if names else ""


def rows_of(study: Study) -> list[Row]:
    """Every row, in the order of the matrix; a row without a complete cell says what became of its cells."""
    axes = study.plan.axes
    kept = [axis.name for axis in axes if not axis.repeats]
    groups: dict[tuple[str, ...], list[CellState]] = {}
    for state in study.states:
        groups.setdefault(tuple(state.cell.labels[name] for name in kept), []).append(state)
    found: dict[tuple[str, ...], dict[tuple[str, str], dict[tuple[str, ...], Result]]] = {}
    repeats = [axis.name for axis in axes if axis.repeats]
    for key, states in groups.items():
        by_benchmark = found.setdefault(key, {})
        for state in states:
            if state.complete:
                folder = study.folder / state.cell.folder
                for result in results_of(folder, study.recipe_of(state)):
                    seeds = tuple(state.cell.labels[name] for name in repeats)
                    by_benchmark.setdefault((result.stage, result.benchmark), {})[seeds] = result
    reference = study.plan.options.reference
    axis = reference_axis(reference, axes) if reference else None
    compared = compared_axis(axes, reference)
    rows: list[Row] = []
    for key, states in groups.items():
        labels = dict(zip(kept, key, strict=True))
        for (stage, benchmark), results in (found[key] or {("", ""): {}}).items():
            row = row_of(labels, stage, benchmark, results, states)
            row.name = labels.get(compared, "all")
            row.is_reference = axis is not None and labels[axis.name] == reference
            if axis is not None and not row.is_reference and results:
                other = tuple(str(reference) if name == axis.name else labels[name] for name in kept)
                held_against(row, results, found.get(other, {}).get((stage, benchmark), {}))
            curves = [curve_of(study.folder / state.cell.folder, row.model) for state in states if state.complete]
            row.curve, row.band = _mean_curve(curves), _band(curves)
            rows.append(row)
    correct(rows, study.plan.options.correction)
    return rows


def correct(rows: Sequence[Row], how: Correction) -> None:
    """Correct the p-values of the main scores for how many rows are held against the reference."""
    found = [
        (row, difference.p) for row in rows if row.main and (difference := row.figures[row.main].difference) is not None
    ]
    able = [(row, p_value) for row, p_value in found if p_value is not None]
    for (row, _), p_value in zip(able, corrected([p_value for _, p_value in able], how), strict=True):
        row.p_corrected = p_value


def row_of(
    labels: dict[str, str],
    stage: str,
    benchmark: str,
    results: Mapping[tuple[str, ...], Result],
    states: Sequence[CellState] = (),
    name: str = "",
) -> Row:
    """A row with its figures, of the results that its seeds (or other repeats) have."""
    counts: dict[str, int] = {}
    for state in states:
        counts[state.status] = counts.get(state.status, 0) + 1
    messages = "; ".join(dict.fromkeys(state.message for state in states if state.message))
    chosen = dict(states[0].chosen) if states else {}
    row = Row(
        labels,
        name,
        benchmark=benchmark,
        stage=stage,
        expected=len(states),
        counts=counts,
        chosen=chosen,
        message=messages,
        results=results,
    )
    row.budget = next((state.matched.to_json() for state in states if state.matched is not None), None)
    if not results:
        return row
    each = list(results.values())
    row.model, row.examples = each[0].model, each[0].examples
    for metric in each[0].metrics:
        values = [result.metrics[metric] for result in each if metric in result.metrics]
        around = mean_interval(values, _draws(each, metric), SEED)
        least, most = bounds(metric, each[0].metrics)
        row.figures[metric] = Figure(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            tuple(values),
            (max(around.low, least), min(around.high, most)) if around else None,
        )
    for name in each[0].costs:
        told = [result.costs[name] for result in each if name in result.costs]
        row.costs[name] = statistics.fmean(told)
    return row


def held_against(
    row: Row, results: Mapping[tuple[str, ...], Result], reference: Mapping[tuple[str, ...], Result]
) -> None:
    """Put the paired difference from the reference beside each metric."""
    if not reference:
        return
    together = list(results) == list(reference)
    one, two = list(results.values()), list(reference.values())
    same = all(result.same_examples(two[0]) for result in [*one, *two])
    for metric, figure in row.figures.items():
        scores = [result.metrics[metric] for result in two if metric in result.metrics]
        if len(scores) != len(two):
            continue
        draws, others = (_draws(one, metric), _draws(two, metric)) if same else (None, None)
        difference = paired_difference(figure.values, scores, draws, others, SEED, paired_seeds=together)
        row.figures[metric] = Figure(figure.mean, figure.sd, figure.values, figure.interval, difference)


def _draws(results: Sequence[Result], metric: str) -> list[Any] | None:
    found = [result.draws[metric] for result in results if metric in result.draws]
    return found if len(found) == len(results) else None


def _mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Mean over the seeds at the steps that all of them logged, thinned."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    tables = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    every = max(1, math.ceil(len(steps) / MOST_CURVES))
    return [(step, statistics.fmean(table[step] for table in tables)) for step in steps[::every]]


def _band(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float]]:
    """Between what losses the seeds lie, at the steps of the mean."""
    tables = [dict(curve) for curve in curves if curve]
    if len(tables) < 2:
        return []
    return [
        (step, min(table[step] for table in tables), max(table[step] for table in tables))
        for step, _ in _mean_curve(curves)
    ]


def counted(states: Iterable[CellState]) -> dict[str, int]:
    """Cells by how far they are; reused ones are done."""
    counts = dict.fromkeys(("done", "failed", "refused", "stopped", "queued"), 0)
    for state in states:
        counts["done" if state.complete else state.status] += 1
    return counts


def write_results(study: Study, code: int, seconds: float) -> None:
    """`study.json`, `table.csv`, `table.parquet`, `README.md` and `report.html` of a study, complete or not."""
    from pipelines.studies.overview import overviews
    from pipelines.studies.page import page
    from pipelines.studies.readme import blocks, readme

    rows = rows_of(study)
    data = as_data(study, rows, code, seconds)
    glances = overviews(blocks(data, rows), data["reference"], data["correction"])
    data["overviews"] = [each.to_json() for each in glances]
    write_json(study.folder / "study.json", data, allow_nan=True)
    _write_tables(study.folder, study.plan.axes, rows, data["budget"]["unit"] if data["budget"] else "")
    write_text(study.folder / "README.md", readme(data, rows, glances))
    write_text(study.folder / "report.html", page(data, rows, glances))


def as_data(study: Study, rows: Sequence[Row], code: int, seconds: float) -> dict[str, Any]:
    """Everything that is known of a study, as plain data: what `study.json` holds."""
    return {
        "name": study.plan.recipe.name,
        "exit_code": code,
        "seconds": seconds,
        "reference": study.plan.options.reference,
        "compared": compared_axis(study.plan.axes, study.plan.options.reference),
        "axes": [
            {
                "name": axis.name,
                "key": axis.key,
                "entries": [entry.label for entry in axis.entries],
                "seeds": axis.repeats,
            }
            for axis in study.plan.axes
        ],
        "correction": study.plan.options.correction,
        "comparisons": sum(row.p_corrected is not None for row in rows),
        "counts": counted(study.states),
        "cells": [
            {
                "cell": state.cell.folder,
                "labels": dict(state.cell.labels),
                "status": state.status,
                "message": state.message,
                "seconds": round(state.seconds, 3),
                "chosen": dict(state.chosen),
            }
            for state in study.states
        ],
        "search": [
            {
                "labels": dict(group.labels),
                "trials": [each.to_json() for each in study.tried.get(group.number, [])],
                "grid": {path: list(dict.fromkeys(values[path] for values in group.grid)) for path in group.grid[0]}
                if _plain(group.grid)
                else {},
                "edge": study.edges.get(group.number, ""),
            }
            for group in study.plan.groups
        ],
        "budget": _budget(study),
        "rows": [row.to_json() for row in rows],
    }


def _plain(grid: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the values of a grid can be told apart by themselves."""
    return all(isinstance(value, str | int | float | None) for values in grid for value in values.values())


def _budget(study: Study) -> dict[str, Any] | None:
    """What was made equal, if anything was."""
    budget = study.plan.options.budget
    if budget is None:
        return None
    stage = next((state.matched.stage for state in study.states if state.matched is not None), budget.stage or "")
    reference = str(budget.reference or study.plan.options.reference)
    return {
        "match": budget.match,
        "unit": UNITS[budget.match],
        "reference": reference,
        "stage": stage,
        "sentence": sentence(budget.match, reference, stage),
    }


def _write_tables(folder: Path, axes: Sequence[Axis], rows: Sequence[Row], study_budget: str = "") -> None:
    """One line a row and metric."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    names = [axis.name for axis in axes if not axis.repeats]
    lines: list[dict[str, Any]] = []
    for row in rows:
        common: dict[str, Any] = {name: row.labels[name] for name in names}
        common |= {"benchmark": row.benchmark or None, "model": row.model or None, "expected": row.expected}
        common |= {
            status: row.counts.get(status, 0) + (row.counts.get("reused", 0) if status == "done" else 0)
            for status in ("done", "failed", "refused")
        }
        if study_budget:
            common |= {
                "budget_unit": study_budget,
                "spent": row.budget["spent"] if row.budget else None,
                "max_steps": row.budget["max_steps"] if row.budget else None,
            }
        costs = {
            name: row.costs.get(name)
            for name in (
                "trainable_parameters",
                "all_parameters",
                "peak_memory_bytes",
                "train_runtime",
                "train_steps",
                "saved_bytes",
            )
        }
        for metric in row.figures or [None]:
            figure = row.figures[metric] if metric else None
            difference = figure.difference if figure else None
            lines.append(
                common
                | {
                    "metric": metric,
                    "mean": figure.mean if figure else None,
                    "sd": figure.sd if figure else None,
                    "low": figure.interval[0] if figure and figure.interval else None,
                    "high": figure.interval[1] if figure and figure.interval else None,
                    "difference": difference.value if difference else None,
                    "difference_low": difference.low if difference else None,
                    "difference_high": difference.high if difference else None,
                    "p": difference.p if difference else None,
                    "p_corrected": row.p_corrected if metric == row.main else None,
                    "verdict": row.verdict(metric) if metric else "",
                    "trainable_share": row.share,
                    **costs,
                    "message": row.message or None,
                }
            )
    table = pa.Table.from_pylist(lines)
    for name, write in (("table.parquet", pq.write_table), ("table.csv", csv.write_csv)):
        with whole_file(folder / name) as temporary:
            write(table, temporary)
