"""What a study leaves in its folder: `study.json`, `table.csv`, `table.parquet`, `README.md` and `report.html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.files import JSONObject, whole_file, write_json, write_text
from pipelines.core.study_matrix import Axis
from pipelines.studies.budget import UNITS, sentence
from pipelines.studies.overview import overviews
from pipelines.studies.page import page
from pipelines.studies.readme import readme
from pipelines.studies.state import CellState, StudyState
from pipelines.studies.table import StudyRow, blocks, compared_axis, rows_of

COSTS = (
    "trainable_parameters", "all_parameters", "peak_memory_bytes", "train_runtime", "train_steps", "saved_bytes",
)  # fmt: skip
"""Columns of the table."""


def write_results(study: StudyState, code: int, seconds: float) -> None:
    """`study.json`, `table.csv`, `table.parquet`, `README.md` and `report.html` of a study, complete or not."""
    rows = rows_of(study)
    data = as_data(study, rows, code, seconds)
    glances = overviews(blocks(data, rows), data["reference"], data["correction"])
    data["overviews"] = [each.to_json() for each in glances]
    write_json(study.folder / "study.json", data, allow_nan=True)
    _write_tables(study.folder, study.plan.axes, rows, data["budget"]["unit"] if data["budget"] else "")
    write_text(study.folder / "README.md", readme(data, rows, glances))
    write_text(study.folder / "report.html", page(data, rows, glances))


def as_data(study: StudyState, rows: Sequence[StudyRow], code: int, seconds: float) -> dict[str, Any]:
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


def counted(states: Iterable[CellState]) -> dict[str, int]:
    """Cells by how far they are; reused ones are done."""
    counts = dict.fromkeys(("done", "failed", "refused", "stopped", "queued"), 0)
    for state in states:
        counts["done" if state.complete else state.status] += 1
    return counts


def _plain(grid: Sequence[JSONObject]) -> bool:
    """Whether the values of a grid can be told apart by themselves."""
    return all(isinstance(value, str | int | float | None) for values in grid for value in values.values())


def _budget(study: StudyState) -> dict[str, Any] | None:
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


def _write_tables(folder: Path, axes: Sequence[Axis], rows: Sequence[StudyRow], study_budget: str = "") -> None:
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
        costs = {name: row.costs.get(name) for name in COSTS}
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
