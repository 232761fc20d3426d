"""A study as one page to look at: `report.html`, self-contained, with every number of the table behind its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.core.files import JSONObject
from pipelines.core.pages import render
from pipelines.core.results import is_number
from pipelines.core.scores import smaller_is_better
from pipelines.core.study_cells import named, told
from pipelines.reports import plots
from pipelines.studies import readme
from pipelines.studies.overview import Overview
from pipelines.studies.table import StudyRow, blocks

COSTS = (
    ("trainable_parameters", "weights that learn", ""),
    ("train_runtime", "time of training", "s"),
    ("peak_memory_bytes", "peak memory while training", "B"),
    ("saved_bytes", "weights saved on the disk", "B"),
)
"""What scores are held against: a key of the costs, its name and its unit."""
KINDS = {"reference": "reference", "better": "better", "worse": "worse", "inside the noise": "noise"}


def page(data: JSONObject, rows: Sequence[StudyRow], overviews: Sequence[Overview] = ()) -> str:
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
        missing=missing,
        summary=readme.summary_line(data),
        search=_search(data),
        corrected_by=readme.family(data),
        budget=(data.get("budget") or {}).get("sentence", ""),
    )


def _glance(overview: Overview, reference: str | None) -> dict[str, Any]:
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
) -> dict[str, Any]:
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
        "costs": _costs(able),
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


def _costs(rows: Sequence[StudyRow]) -> list[str]:
    """One scatter a cost that tells the methods apart."""
    drawn = []
    for key, name, unit in COSTS:
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
