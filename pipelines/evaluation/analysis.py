"""What stands behind a score: parts of the benchmark, calibration, confusions, mistakes, and overlap with training.

Scores of parts of a benchmark: short and long texts, each class, and the values of any column.

A mean hides where a model fails. Texts are cut into four parts of about the same size by their length in words; of a
column each value is a part, of one with many values the most frequent ones, and numbers are cut like lengths. Of
classes, precision and recall say what a score of one class alone would.

What stands behind a score: parts of the benchmark, calibration, confusions, the worst mistakes, and overlap with
training.

Everything here explains a score that is there already: where a part of it cannot be had for a kind of answer it is
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Context, Rows, Score, Task
from pipelines.core.registry import nearest
from pipelines.evaluation import contamination
from pipelines.evaluation.calibration import calibration, expected_error, reliability
from pipelines.evaluation.examples import MOST_CLASSES, Outcomes, mistakes, outcomes_of
from pipelines.metrics.base import confusion
from pipelines.metrics.statistics import corpus_intervals, intervals
from pipelines.tasks.causal.evaluation import CompletionPredictions, ScoredCompletions, graded
from pipelines.tasks.extractive_qa.evaluation import SpanPredictions
from pipelines.tasks.predictions import LogitPredictions, SplitPredictions

PARTS = 4
MOST_VALUES = 20
"""Values of a column that are told apart; the others are one part."""
RESAMPLES = 200
"""Of each part's interval: it is looked at, not claimed by."""
OTHERS = "(other values)"
NOTHING = "(empty)"
FEWEST = 5
"""Examples of a part that is scored."""


def lengths(rows: Rows) -> NDArray[np.int64]:
    """Words of each row, those of both texts together."""
    words = np.array([len(text.split()) for text in rows.texts], dtype=np.int64)
    return words if rows.pairs is None else words + np.array([len(text.split()) for text in rows.pairs], dtype=np.int64)


def cut(values: NDArray[Any], unit: str = "") -> list[tuple[str, NDArray[np.int64]]]:
    """Numbers in up to four parts of about the same size: (name, positions)."""
    if not len(values):
        return []
    ends = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)[1:], method="inverted_cdf"))
    place = np.searchsorted(ends, values, side="left")
    found = []
    for number in range(len(ends) if len(ends) > 1 else 0):
        mine = np.flatnonzero(place == number)
        if len(mine):
            low, high = values[mine].min(), values[mine].max()
            name = f"{low:g}" if low == high else f"{low:g} – {high:g}"
            found.append((f"{name}{unit}", mine))
    return found


def by_value(cells: Sequence[Any]) -> list[tuple[str, NDArray[np.int64]]]:
    """The parts of a column: (name, positions)."""
    numbers = all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)
    if numbers and len(set(cells)) > MOST_VALUES:
        return cut(np.array(cells, dtype=np.float64))
    names = np.array([NOTHING if cell is None or cell == "" else str(cell) for cell in cells], dtype=object)
    values, counts = np.unique(names, return_counts=True)
    kept = [str(value) for value in values[np.argsort(-counts, kind="stable")]]
    kept, rest = (kept, set()) if len(kept) <= MOST_VALUES else (kept[: MOST_VALUES - 1], set(kept[MOST_VALUES - 1 :]))
    found = [(value, np.flatnonzero(names == value)) for value in kept]
    return [*found, *([(OTHERS, np.flatnonzero([name in rest for name in names]))] if rest else [])]


def check_named(tasks: Iterable[Any], names: Sequence[str]) -> None:
    """Raise DataError where a task's rows have no column of such a name: before a model is asked."""
    for task in tasks:
        for split in task.evaluation_splits.values():
            _opened(task, split, names)


def _opened(task: Any, split: str, names: Sequence[str]) -> Any:
    """The data that holds a split. Raises DataError."""
    task = getattr(task, "task", task)
    stored = split if split in task.places else "train"
    source, inner = task.places[stored].open(stored)
    data = source.load(inner)
    missing = [name for name in names if name not in data.column_names]
    if missing:
        hint = nearest(missing[0], data.column_names)
        raise DataError(
            f"'slices' names the column '{missing[0]}', but {source.describe()} has {', '.join(data.column_names)}.{hint}"
        )
    return data


def columns_of(task: Any, split: str, index: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of these columns of a split's rows, whose numbers in the file are `index`. Raises DataError."""
    if not names:
        return {}
    data = _opened(task, split, names)
    found: dict[str, list[Any]] = {}
    for name in names:
        cells = data[name][:]
        labels = getattr(data.features[name], "names", None)
        if any(isinstance(cells[at], list | dict) for at in index):
            raise DataError(
                f"'slices' names the column '{name}', whose cells are lists; name one of texts, numbers or truth values"
            )
        found[name] = [
            labels[cells[at]] if labels and isinstance(cells[at], int) and cells[at] >= 0 else cells[at] for at in index
        ]
    return found


def slices(
    said: SplitPredictions, task: Task, score: Score, columns: Mapping[str, Sequence[Any]], seed: int
) -> list[dict[str, Any]]:
    """The scores of each part of a split, with intervals, as they stand in `details.json`."""
    groups = [("length", name, mine) for name, mine in cut(lengths(said.rows), " words")]
    groups += [(column, name, mine) for column, cells in columns.items() for name, mine in by_value(cells)]
    found = []
    for by, name, mine in groups:
        scores, around = _scored(said, task, score, mine, seed) if len(mine) >= FEWEST else ({}, {})
        found.append({"by": by, "name": name, "examples": len(mine), "scores": scores, "intervals": around})
    return found


def _scored(
    said: SplitPredictions, task: Task, score: Score, mine: NDArray[np.int64], seed: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    answers, labels = said.said, said.labels
    if isinstance(answers, ScoredCompletions):
        if answers.texts is None:
            return {}, {}
        answers = answers.texts
    try:
        scores = {name: value for name, value in score(answers[mine], labels[mine]).items() if np.isfinite(value)}
        if isinstance(said, LogitPredictions):
            around = intervals(score, answers[mine], labels[mine], seed, RESAMPLES)
        elif isinstance(said, SpanPredictions):
            around = corpus_intervals(task.metrics, answers[mine], labels[mine], seed, RESAMPLES)
        elif isinstance(said, CompletionPredictions):
            around = corpus_intervals(
                task.metrics, graded(task, answers[mine]), graded(task, labels[mine]), seed, RESAMPLES
            )
        else:
            around = {}
    except (DataError, ValueError):  # a score that these examples do not define, such as a correlation of equal numbers
        return {}, {}
    return scores, {name: pair for name, pair in around.items() if name in scores and np.isfinite(pair).all()}


def classes(found: Outcomes) -> dict[str, Any] | None:
    """The confusion matrix, and precision, recall and F1 of each class; None where classes are not the same in
    every example."""
    if not found.classes or found.logits is None or found.labels is None or len(found.classes) > MOST_CLASSES:
        return None
    counts = confusion(found.logits.argmax(axis=1), found.labels.astype(np.int64), len(found.classes))
    right, true, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    each = [
        {
            "name": name,
            "examples": int(true[at]),
            "said": int(said[at]),
            "precision": float(right[at] / said[at]) if said[at] else None,
            "recall": float(right[at] / true[at]) if true[at] else None,
            "f1": float(2 * right[at] / (true[at] + said[at])) if true[at] + said[at] else None,
        }
        for at, name in enumerate(found.classes)
    ]
    return {"names": list(found.classes), "counts": counts.tolist(), "each": each}


KEYS = ("slices", "classes", "calibration", "mistakes", "overlap")
"""What is added to a benchmark's `details.json`, each by split."""


@dataclass
class Analysis:
    """What was found about one benchmark."""

    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By KEYS, then by split."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def put(self, key: str, split: str, value: Any) -> None:
        """Keep what was found, if anything was."""
        if value:
            self.details.setdefault(key, {})[split] = value


def analysed(
    context: Context,
    model: str,
    task: Task,
    predicted: Sequence[SplitPredictions],
    score: Score,
    columns: Mapping[str, Mapping[str, Sequence[Any]]],
) -> Analysis:
    """Look behind the scores of a benchmark. `columns` are the cells to slice by, by split and column."""
    found = Analysis()
    for said in predicted:
        if said.labels is not None:
            found.put("slices", said.split, slices(said, task, score, columns.get(said.split, {}), context.seed))
            outcomes = outcomes_of(said, task)
            if outcomes is not None:
                _explain(found, said, outcomes)
        _overlap(found, context, model, said, score)
    return found


def _explain(found: Analysis, said: SplitPredictions, outcomes: Outcomes) -> None:
    found.put("classes", said.split, classes(outcomes))
    if outcomes.logits is not None and outcomes.labels is not None and len(outcomes.labels):
        found.put("calibration", said.split, calibration(outcomes.logits, outcomes.labels))
    elif outcomes.confidence is not None:
        found.put("calibration", said.split, _without_logits(outcomes))
    worst = mistakes(said, outcomes)
    found.mistakes += worst
    found.put("mistakes", said.split, {"wrong": int(outcomes.wrong.sum()), "kept": len(worst), "by": outcomes.order})


def _without_logits(outcomes: Outcomes) -> dict[str, Any]:
    """Answers that are chosen among candidates of their own: the bins and the error, no temperature."""
    assert outcomes.confidence is not None
    right = ~outcomes.wrong
    return {
        "temperature": 1.0,
        "ece": expected_error(outcomes.confidence, right),
        "confidence": float(outcomes.confidence.mean()),
        "accuracy": float(right.mean()),
        "bins": reliability(outcomes.confidence, right),
    }


def _overlap(found: Analysis, context: Context, model: str, said: SplitPredictions, score: Score) -> None:
    answers: Any = said.said
    if isinstance(answers, ScoredCompletions):
        answers = answers.texts
    told = contamination.checked(
        context, model, said.rows, score, answers if isinstance(answers, np.ndarray) else None, said.labels
    )
    found.put("overlap", said.split, told)
    if told and (doubt := contamination.doubt(said.benchmark, said.split, told)) is not None:
        found.doubts.append(doubt)


def look_for_overlap(
    context: Context, predicted: Sequence[SplitPredictions], details: dict[str, dict[str, Any]]
) -> list[str]:
    """The overlap check for what was scored in another way than `analysed` sees, zero-shot questions for one.

    Puts it into the details of these benchmarks; returns the sentences to warn with.
    """
    doubts = []
    for said in predicted:
        about = details.get(said.benchmark, {})
        if said.split in about.get("overlap", {}) or "model" not in about:
            continue
        told = contamination.checked(context, about["model"], said.rows)
        if told is None:
            continue
        about.setdefault("overlap", {})[said.split] = told
        if (doubt := contamination.doubt(said.benchmark, said.split, told)) is not None:
            doubts.append(doubt)
    return doubts
