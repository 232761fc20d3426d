"""What a study leaves in its folder: `study.json`, `table.csv`, `table.parquet`, `README.md` and `report.html`.

The page is self-contained and has every number of the table behind its plots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.files import JSONObject, whole_file, write_json, write_text
from pipelines.core.pages import render
from pipelines.core.results import is_number
from pipelines.core.scores import smaller_is_better
from pipelines.core.study_cells import CellGroup, named, told
from pipelines.core.study_matrix import Axis
from pipelines.reports import plots
from pipelines.studies import hypotheses, readme
from pipelines.studies.budget import UNITS, sentence
from pipelines.studies.hypotheses import TestedHypothesis
from pipelines.studies.overview import Overview, overviews
from pipelines.studies.state import CellState, StudyState
from pipelines.studies.table import StudyRow, blocks, compared_axis, rows_of

COLUMNS = (
    "trainable_parameters",
    "all_parameters",
    "peak_memory_bytes",
    "train_runtime",
    "train_steps",
    "saved_bytes",
)
"""Columns of the table."""
PLOTTED_COSTS = (
    ("trainable_parameters", "weights that learn", ""),
    ("train_runtime", "time of training", "s"),
    ("peak_memory_bytes", "peak memory while training", "B"),
    ("saved_bytes", "weights saved on the disk", "B"),
)
"""What scores are held against: a key of the costs, its name and its unit."""
KINDS = {
    "reference": "reference",
    "better": "better",
    "worse": "worse",
    "inside the noise": "noise",
    "equivalent": "noise",
}


def write_results(study: StudyState, code: int, seconds: float) -> None:
    """`study.json`, `table.csv`, `table.parquet`, `README.md` and `report.html` of a study, complete or not."""
    rows = rows_of(study)
    data = as_data(study, rows, code, seconds)
    glances = overviews(blocks(data, rows), data["reference"], data["correction"])
    data["overviews"] = [each.to_json() for each in glances]
    tested = hypotheses.tested(study.plan.options.hypotheses, blocks(data, rows), data["correction"])
    data["hypotheses"] = [each.to_json() for each in tested]
    write_json(study.folder / "study.json", data)
    _write_tables(study.folder, study.plan.axes, rows, data["budget"]["unit"] if data["budget"] else "")
    write_text(study.folder / "README.md", readme.readme(data, rows, glances, tested))
    write_text(study.folder / "report.html", page(data, rows, glances, tested))


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
                "scored_on": _scored_on(study, group),
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


def _scored_on(study: StudyState, group: CellGroup) -> str:
    """What the search's own evaluation scored the trials on; empty where they were scored on rows set aside."""
    search = study.plan.options.search
    if search is None or search.evaluate is None:
        return ""
    trial = study.plan.trial(group, group.grid[0])
    return ", ".join(trial.stages[-1].scored_on(trial))


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
        costs = {name: row.costs.get(name) for name in COLUMNS}
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


def page(
    data: JSONObject,
    rows: Sequence[StudyRow],
    overviews: Sequence[Overview] = (),
    tested: Sequence[TestedHypothesis] = (),
) -> str:
    """The page as HTML."""
    sections = [
        _block(labels, benchmark, block, data["reference"], readme.family(data))
        for labels, benchmark, block in blocks(data, rows)
    ]
    missing = [cell for cell in data["cells"] if cell["status"] not in ("done", "reused")]
    return render(
        __package__,
        "study.html.jinja",
        named=named,
        told=told,
        data=data,
        glances=[_glance(each, data["reference"]) for each in overviews],
        blocks=sections,
        hypotheses={"head": hypotheses.HEAD, "lines": [each.cells() for each in tested]},
        missing=missing,
        summary=readme.summary_line(data),
        search=_search(data),
        corrected_by=readme.family(data),
        budget=(data.get("budget") or {}).get("sentence", ""),
    )


def _glance(overview: Overview, reference: str | None) -> JSONObject:
    """The tasks of a study side by side."""
    head, *lines = readme.glance(overview, reference)
    return {
        "heading": readme.glance_heading(overview),
        "head": [text for text, _ in head],
        "lines": [[{"text": text, "kind": KINDS.get(verdict, "")} for text, verdict in line] for line in lines],
        "key": readme.glance_key(overview, reference),
    }


def _block(
    labels: Mapping[str, str], benchmark: str, rows: Sequence[StudyRow], reference: str | None, corrected_by: str
) -> JSONObject:
    """One section: its heading, table, sentences and plots."""
    able = [row for row in rows if row.figures]
    return {
        "heading": readme.heading(labels, benchmark) or "Results",
        "rows": [
            {"cells": readme.cells(row, reference, readme.budgeted(rows)), "kind": KINDS.get(row.verdict(), "")}
            for row in rows
        ],
        "steps": readme.budgeted(rows),
        "metric": next((row.main for row in able), "score"),
        "reference": reference,
        "sentences": [each for row in rows if (each := readme.sentence(row, reference, corrected_by))],
        "headline": readme.headline(rows, reference),
        "scores": _scores(able, [row for row in rows if not row.figures]),
        "larger": not smaller_is_better(next((row.main for row in able), None)),
        "frontier": _frontier(able),
        "costs": _cost_plots(able),
        "curves": _curves(able),
    }


def _scores(rows: Sequence[StudyRow], without: Sequence[StudyRow]) -> str:
    """The best on top; what has no result below, with what became of it."""
    if not rows:
        return ""
    dots = []
    for row in readme.best_first(rows):
        figure = row.figures[str(row.main)]
        low, high = figure.interval or (None, None)
        note = f"({readme.done(row)} of {row.expected} seeds)" if readme.done(row) < row.expected else ""
        dots.append(
            plots.Dot(
                row.name,
                figure.mean,
                low,
                high,
                figure.values if len(figure.values) > 1 else (),
                KINDS.get(row.verdict(), ""),
                note,
            )
        )
    return plots.dot_plot(dots, str(rows[0].main), [(row.name, readme.fate(row)) for row in without])


def _frontier(rows: Sequence[StudyRow]) -> str:
    """Reward against KL divergence, where the models' own completions were scored."""
    methods = [
        plots.PolicyScores(row.name, tuple(zip(row.figures["kl"].values, row.figures["reward"].values, strict=True)))
        for row in rows
        if {"kl", "reward"} <= row.figures.keys() and len(row.figures["kl"].values) == len(row.figures["reward"].values)
    ]
    starts = [row.figures["reward_against"].mean for row in rows if "reward_against" in row.figures]
    return plots.frontier(methods, sum(starts) / len(starts) if starts else None) if methods else ""


def _cost_plots(rows: Sequence[StudyRow]) -> list[str]:
    """One scatter a cost that tells the methods apart."""
    drawn = []
    for key, name, unit in PLOTTED_COSTS:
        points = []
        for row in rows:
            cost = row.costs.get(key)
            if cost:
                figure = row.figures[str(row.main)]
                low, high = figure.interval or (None, None)
                points.append(plots.Point(row.name, cost, figure.mean, low, high))
        if len({point.x for point in points}) > 1:
            drawn.append(plots.scatter(points, name, str(rows[0].main), not smaller_is_better(str(rows[0].main)), unit))
    return drawn


def _curves(rows: Sequence[StudyRow]) -> str:
    series = [plots.Curve(row.name, row.curve, row.band) for row in rows if len(row.curve) > 1]
    return plots.lines(series, "step", "training loss, mean over seeds") if series else ""


def _search(data: JSONObject) -> str:
    """Every value that was tried with its score, where one number was searched for."""
    series: list[plots.SearchedValues] = []
    name = ""
    for group in data["search"]:
        paths = list(group.get("grid") or {})
        if len(paths) != 1:
            return ""
        name = paths[0].rpartition(".")[2]
        last = {
            tuple(each["values"].items()): each
            for each in group["trials"]
            if each["score"] is not None and is_number(each["values"][paths[0]])
        }
        tried = [plots.SearchedValue(each["values"][paths[0]], each["score"], each["chosen"]) for each in last.values()]
        if tried:
            series.append(plots.SearchedValues(named(group["labels"]) or "all", tried))
    metrics = {each["metric"] for group in data["search"] for each in group["trials"] if each["score"] is not None}
    return plots.search(series, name, metrics.pop()) if series and len(metrics) == 1 else ""
