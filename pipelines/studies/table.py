"""The table of a study: one row a method and benchmark, over its seeds, held against the reference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.core.events import read_events
from pipelines.core.files import JSONObject
from pipelines.core.scores import bounds, smaller_is_better
from pipelines.core.study_matrix import Axis
from pipelines.core.study_options import StudyOptions, reference_axis
from pipelines.evaluation.outcomes import SEED
from pipelines.evaluation.resampling import Estimate, Floats, mean_interval, paired_difference
from pipelines.metrics.statistics import SIGNIFICANCE_LEVEL as SIGNIFICANT
from pipelines.metrics.statistics import Correction, corrected
from pipelines.reports.results import Points, Result, learning_curve, results_of
from pipelines.studies.state import CellState, StudyState

Blocks = list[tuple[dict[str, str], str, list["StudyRow"]]]
"""(labels, benchmark, rows) of rows that are read together."""
FEWEST_SEEDS = 3
"""For a claim about a method: with fewer the spread of its seeds is hardly known."""
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

    def to_json(self) -> JSONObject:
        """As plain data."""
        difference = None
        if self.difference is not None:
            difference = {
                "value": self.difference.value,
                "interval": [self.difference.low, self.difference.high],
                "clear": self.difference.clear,
                "p": self.difference.p,
                "p_equivalent": self.difference.p_equivalent,
            }
        return {
            "mean": self.mean,
            "sd": self.sd,
            "values": list(self.values),
            "interval": list(self.interval) if self.interval else None,
            "difference": difference,
        }


@dataclass
class StudyRow:
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
    reference_seeds: int | None = None
    """Seeds of the reference, where the row is held against one."""
    examples: int = 0
    curve: Points = field(default_factory=list)
    """(step, mean training loss over the seeds)."""
    band: list[tuple[float, float, float]] = field(default_factory=list)
    """(step, least and largest training loss of a seed); empty with one seed."""
    message: str = ""
    """Why cells are missing."""
    budget: dict[str, Any] | None = None
    """What each cell may spend: `stage`, `max_steps`, `spent`, `budget`; None where budgets are not matched."""
    p_corrected: float | None = None
    """Of the main score's difference, corrected for all rows that are held against the reference."""
    p_equivalent: float | None = None
    """That the main score's difference lies within the margin, corrected alike; None without a margin."""
    margin: float | None = None
    """Differences of the main score that are too small to matter, as the study says."""
    searched: bool = False
    """Whether the study searched for the values of its methods, or the method for its own."""
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
        """`reference`, `better`, `worse`, `equivalent`, `inside the noise`, or nothing where nothing can be said.

        Only the main score is called equivalent: its difference is shown to lie within the margin.
        """
        if self.is_reference:
            return "reference"
        name = metric or self.main
        difference = self.figures[name].difference if name in self.figures else None
        if difference is None:
            return ""
        if name == self.main and self.p_equivalent is not None and self.p_equivalent <= SIGNIFICANT:
            return "equivalent"
        if not difference.clear or (
            name == self.main and self.p_corrected is not None and self.p_corrected > SIGNIFICANT
        ):
            return "inside the noise"
        return "better" if (difference.value > 0) != smaller_is_better(name) else "worse"

    @property
    def lacks(self) -> list[str]:
        """What is missing for a claim about this row: seeds, its own or the reference's, or a search of its values."""
        seeds = min((len(each.values) for each in self.figures.values()), default=0)
        seeds = seeds if self.reference_seeds is None else min(seeds, self.reference_seeds)
        few = [] if seeds >= FEWEST_SEEDS else [f"{seeds} of {FEWEST_SEEDS} seeds"]
        return [*few, *([] if self.searched else ["no search of its settings"])]

    def to_json(self) -> JSONObject:
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
            "p_equivalent": self.p_equivalent,
            "margin": self.margin,
            "lacks": self.lacks,
            "budget": self.budget,
            "examples": self.examples,
            "message": self.message,
        }


def compared_axis(axes: Sequence[Axis], reference: str | None) -> str:
    """The key whose entries are held against each other: that of the reference, else the last that is no seed."""
    axis = reference_axis(reference, tuple(axes)) if reference else None
    names = [each.name for each in axes if not each.repeats]
    return axis.name if axis else names[-1] if names else ""


Measured = dict[tuple[str, ...], dict[tuple[str, str], dict[tuple[str, ...], Result]]]
"""By the labels of a row, then by (stage, benchmark), then by seeds."""


def _chose_itself(results: Mapping[tuple[str, ...], Result]) -> bool:
    """Whether every cell chose its setting on rows set aside, as classifiers on frozen features choose their C."""
    return bool(results) and all((result.details.get("probe") or {}).get("tried") for result in results.values())


def _stand_together(measured: Measured) -> None:
    """Where no row has two results of a benchmark, all of them are held under the first one's stage: one row's may be
    of an evaluate stage and another's of features."""
    for benchmark in dict.fromkeys(name for results in measured.values() for _, name in results):
        owners = [[key for key in results if key[1] == benchmark] for results in measured.values()]
        if any(len(keys) > 1 for keys in owners):
            continue
        first = next(keys[0] for keys in owners if keys)
        for results, keys in zip(measured.values(), owners, strict=True):
            if keys and keys[0] != first:
                results[first] = results.pop(keys[0])


def rows_of(study: StudyState) -> list[StudyRow]:
    """Every row, in the order of the matrix; a row without a complete cell says what became of its cells."""
    axes = study.plan.axes
    names = [axis.name for axis in axes if not axis.repeats]
    groups: dict[tuple[str, ...], list[CellState]] = {}
    for state in study.states:
        groups.setdefault(tuple(state.cell.labels[name] for name in names), []).append(state)
    measured: Measured = {}
    repeats = [axis.name for axis in axes if axis.repeats]
    for key, states in groups.items():
        by_benchmark = measured.setdefault(key, {})
        for state in states:
            if state.complete:
                folder = study.folder / state.cell.folder
                for result in results_of(folder, study.recipe_of(state)):
                    seeds = tuple(state.cell.labels[name] for name in repeats)
                    by_benchmark.setdefault((result.stage, result.benchmark), {})[seeds] = result
    _stand_together(measured)
    reference = study.plan.options.reference
    axis = reference_axis(reference, axes) if reference else None
    compared = compared_axis(axes, reference)
    rows: list[StudyRow] = []
    for key, states in groups.items():
        labels = dict(zip(names, key, strict=True))
        for (stage, benchmark), results in (measured[key] or {("", ""): {}}).items():
            row = row_of(labels, stage, benchmark, results, states)
            row.name = labels.get(compared, "all")
            row.is_reference = axis is not None and labels[axis.name] == reference
            row.searched = study.plan.options.search is not None or _chose_itself(results)
            row.margin = margin_of(study.plan.options, benchmark)
            if axis is not None and not row.is_reference and results:
                other = tuple(str(reference) if name == axis.name else labels[name] for name in names)
                held_against(row, results, measured.get(other, {}).get((stage, benchmark), {}))
            complete = [study.folder / state.cell.folder for state in states if state.complete]
            curves = [learning_curve(read_events(folder / "events.jsonl"), row.model) for folder in complete]
            row.curve, row.band = _mean_curve(curves), _band(curves)
            rows.append(row)
    correct(rows, study.plan.options.correction)
    return rows


def margin_of(options: StudyOptions, benchmark: str) -> float | None:
    """What is too little to matter on a benchmark."""
    return options.margin.get(benchmark) if isinstance(options.margin, dict) else options.margin


def correct(rows: Sequence[StudyRow], how: Correction) -> None:
    """Correct the p-values of the main scores for how many rows are held against the reference."""
    tested = [(row, row.figures[row.main].difference) for row in rows if row.main]
    different = [(row, each.p) for row, each in tested if each is not None and each.p is not None]
    for (row, _), p_value in zip(different, corrected([p for _, p in different], how), strict=True):
        row.p_corrected = p_value
    alike = [(row, each.p_equivalent) for row, each in tested if each is not None and each.p_equivalent is not None]
    for (row, _), p_value in zip(alike, corrected([p for _, p in alike], how), strict=True):
        row.p_equivalent = p_value


def row_of(
    labels: dict[str, str],
    stage: str,
    benchmark: str,
    results: Mapping[tuple[str, ...], Result],
    states: Sequence[CellState] = (),
    name: str = "",
) -> StudyRow:
    """A row with its figures, of the results that its seeds (or other repeats) have."""
    counts: dict[str, int] = {}
    for state in states:
        counts[state.status] = counts.get(state.status, 0) + 1
    messages = "; ".join(dict.fromkeys(state.message for state in states if state.message))
    chosen = dict(states[0].chosen) if states else {}
    row = StudyRow(
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
        row.costs[name] = statistics.fmean(result.costs[name] for result in each if name in result.costs)
    return row


def held_against(
    row: StudyRow, results: Mapping[tuple[str, ...], Result], reference: Mapping[tuple[str, ...], Result]
) -> None:
    """Put the paired difference from the reference beside each metric."""
    if not reference:
        return
    row.reference_seeds = len(reference)
    together = list(results) == list(reference)
    one, two = list(results.values()), list(reference.values())
    same = all(result.same_examples(two[0]) for result in [*one, *two])
    for metric, figure in row.figures.items():
        scores = [result.metrics[metric] for result in two if metric in result.metrics]
        if len(scores) != len(two):
            continue
        draws, others = (_draws(one, metric), _draws(two, metric)) if same else (None, None)
        margin = row.margin if metric == row.main else None
        difference = paired_difference(figure.values, scores, draws, others, SEED, paired_seeds=together, margin=margin)
        row.figures[metric] = Figure(figure.mean, figure.sd, figure.values, figure.interval, difference)


def _draws(results: Sequence[Result], metric: str) -> list[Floats] | None:
    draws = [result.draws[metric] for result in results if metric in result.draws]
    return draws if len(draws) == len(results) else None


def _mean_curve(curves: Sequence[Points]) -> Points:
    """Mean over the seeds at the steps that all of them logged, thinned."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    tables = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    every = max(1, math.ceil(len(steps) / MOST_CURVES))
    return [(step, statistics.fmean(table[step] for table in tables)) for step in steps[::every]]


def _band(curves: Sequence[Points]) -> list[tuple[float, float, float]]:
    """Between what losses the seeds lie, at the steps of the mean."""
    tables = [dict(curve) for curve in curves if curve]
    if len(tables) < 2:
        return []
    return [
        (step, min(table[step] for table in tables), max(table[step] for table in tables))
        for step, _ in _mean_curve(curves)
    ]


def blocks(data: JSONObject, rows: Sequence[StudyRow]) -> Blocks:
    """Rows that are read together: the same benchmark, and the same entries of all keys but the compared one."""
    inner = data["compared"]
    groups: dict[tuple[Any, ...], tuple[dict[str, str], str, list[StudyRow]]] = {}
    for row in rows:
        outer = {name: text for name, text in row.labels.items() if name != inner}
        benchmark = row.benchmark or next(
            (
                other.benchmark
                for other in rows
                if other.benchmark and {**other.labels, inner: ""} == {**row.labels, inner: ""}
            ),
            "",
        )
        key = (tuple(outer.values()), row.stage or "", benchmark)
        groups.setdefault(key, (outer, benchmark, []))[2].append(row)
    return _joined(list(groups.values()))


def _joined(groups: Blocks) -> Blocks:
    """Rows without a result stand with those that have one."""
    joined: Blocks = []
    for labels, benchmark, block in groups:
        before = next((each for each in joined if (each[0], each[1]) == (labels, benchmark)), None)
        if before is not None and (not block[0].stage or not before[2][0].stage):
            before[2].extend(block)
        else:
            joined.append((labels, benchmark, list(block)))
    return joined
