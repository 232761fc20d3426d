"""Several tasks at a glance: a line a method, a column a task, and their mean.

Where the methods are ways to train (each task alone, all together, together and then alone) this is a transfer table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.core.files import JSONObject
from pipelines.core.scores import bounds, smaller_is_better
from pipelines.core.study_cells import named
from pipelines.metrics.statistics import Correction
from pipelines.reports.results import Result
from pipelines.studies.table import Blocks, StudyRow, correct, held_against, row_of

MEAN = "mean"
"""The score of a line over its tasks, those that run to 100 divided by it (as GLUE's and the harness's averages
are)."""


@dataclass(frozen=True)
class OverviewLine:
    """One method."""

    name: str
    rows: tuple[StudyRow | None, ...]
    """One a column; None where the method has no result there."""
    mean: StudyRow | None
    """Over all columns, of each seed; None where a result is missing, or where scores cannot be averaged."""

    def to_json(self) -> JSONObject:
        """As plain data."""
        return {"name": self.name, "scores": [_plain(row) for row in self.rows], "mean": _plain(self.mean)}


def _plain(row: StudyRow | None) -> dict[str, Any] | None:
    """The main score of a row."""
    return (
        None
        if row is None or row.main is None
        else {**row.figures[row.main].to_json(), "verdict": row.verdict(), "p_corrected": row.p_corrected}
    )


@dataclass(frozen=True)
class Overview:
    """The tasks of a study that share the entries of all other keys."""

    labels: dict[str, str]
    """Those entries."""
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    """The main score of each column."""
    lines: tuple[OverviewLine, ...]

    @property
    def averaged(self) -> bool:
        """Whether a line has a mean."""
        return any(line.mean is not None for line in self.lines)

    def to_json(self) -> JSONObject:
        """As plain data."""
        return {
            "labels": self.labels,
            "columns": list(self.columns),
            "metrics": list(self.metrics),
            "lines": [line.to_json() for line in self.lines],
        }


def overviews(blocks: Blocks, reference: str | None, correction: Correction) -> list[Overview]:
    """One for each group of blocks that differ in their tasks only; none for a group of one. The p-values of the
    means are corrected for the lines of all of them."""
    measured = [block for block in blocks if block[1]]
    tasks = set(_task_keys(measured))
    groups: dict[tuple[tuple[str, str], ...], list[tuple[dict[str, str], str, list[StudyRow]]]] = {}
    for labels, benchmark, rows in measured:
        rest = {name: entry for name, entry in labels.items() if name not in tasks}
        groups.setdefault(tuple(rest.items()), []).append((labels, benchmark, rows))
    glances = [_overview(dict(rest), group, tasks, reference) for rest, group in groups.items() if len(group) > 1]
    correct([line.mean for overview in glances for line in overview.lines if line.mean is not None], correction)
    return glances


def _task_keys(blocks: Blocks) -> Iterator[str]:
    """The keys of the matrix whose entries are other tasks."""
    for at, (labels, benchmark, _) in enumerate(blocks):
        for other, also, _ in blocks[:at]:
            apart = [name for name in labels if labels[name] != other.get(name)]
            if len(apart) == 1 and also != benchmark:
                yield apart[0]


def _overview(rest: dict[str, str], group: Blocks, tasks: set[str], reference: str | None) -> Overview:
    names = list(dict.fromkeys(row.name for _, _, rows in group for row in rows))
    benchmarks = [benchmark for _, benchmark, _ in group]
    columns = [
        benchmark
        if benchmarks.count(benchmark) == 1
        else named({name: labels[name] for name in labels if name in tasks}) or rows[0].stage
        for labels, benchmark, rows in group
    ]
    by_name = {
        name: [next((row for row in rows if row.name == name and row.figures), None) for _, _, rows in group]
        for name in names
    }
    means = {name: _mean(name, rows) for name, rows in by_name.items()}
    base = means.get(reference) if reference is not None else None
    for name, mean in means.items():
        if mean is None:
            continue
        if name == reference:
            mean.is_reference = True
        elif base is not None:
            held_against(mean, mean.results, base.results)
    metrics = [next((str(row.main) for row in rows if row.main), "") for _, _, rows in group]
    return Overview(
        rest,
        tuple(columns),
        tuple(metrics),
        tuple(OverviewLine(name, tuple(rows), means[name]) for name, rows in by_name.items()),
    )


def _mean(name: str, rows: Sequence[StudyRow | None]) -> StudyRow | None:
    """A row whose results are those of an imagined benchmark: the mean of all tasks, seed by seed."""
    able = [row for row in rows if row is not None and not smaller_is_better(row.main) and row.results]
    seeds = [list(row.results) for row in able]
    if len(able) < len(rows) or any(each != seeds[0] for each in seeds):
        return None
    highest = [bounds(str(row.main), row.figures)[1] for row in able]
    if not all(np.isfinite(highest)):
        return None
    results = {
        seed: _Averaged([row.results[seed] for row in able], [str(row.main) for row in able], highest)
        for seed in seeds[0]
    }
    return row_of({}, "", MEAN, results, name=name)


class _Averaged(Result):
    """The mean of several results."""

    def __init__(self, parts: Sequence[Result], metrics: Sequence[str], highest: Sequence[float]) -> None:
        scores = [part.metrics[metric] / most for part, metric, most in zip(parts, metrics, highest, strict=True)]
        super().__init__(MEAN, "", "", {MEAN: float(np.mean(scores))}, examples=sum(part.examples for part in parts))
        self.averaged = parts
        drawn = [
            part.draws[metric] / most
            for part, metric, most in zip(parts, metrics, highest, strict=True)
            if metric in part.draws
        ]
        self.draws = {MEAN: np.mean(np.stack(drawn), axis=0)} if len(drawn) == len(parts) else {}

    def same_examples(self, other: Result) -> bool:
        """Whether every task was scored on the same examples."""
        return isinstance(other, _Averaged) and all(
            one.same_examples(two) for one, two in zip(self.averaged, other.averaged, strict=True)
        )
