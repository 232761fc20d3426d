"""What stands behind a score: parts of the benchmark, calibration, confusions, mistakes, and overlap with training.

A mean hides where a model fails. Texts are cut into four parts of about the same size by their length in words; of a
column each value is a part, of one with many values the most frequent ones, and numbers are cut like lengths. Of
classes, precision and recall say what a score of one class alone would. Everything here explains a score that is there
already: what cannot be had for a kind of answer is left out.
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
from pipelines.metrics.calibration import calibration, expected_error, reliability
from pipelines.metrics.classification import confusion
from pipelines.tasks.predictions import ALL, Intervals, SplitPredictions
from pipelines.tasks.scored_examples import ScoredExamples

PARTS = 4
MOST_VALUES = 20
"""Values of a column that are told apart; the others are one part."""
RESAMPLES = 200
"""Of each part's interval: it is looked at, not claimed by."""
OTHERS = "(other values)"
NOTHING = "(empty)"
FEWEST = 5
"""Examples of a part that is scored."""
MOST_CLASSES = 30
"""Beyond these a confusion matrix is not kept."""
MOST_MISTAKES = 200
"""Of each split."""


def lengths(rows: Rows) -> NDArray[np.int64]:
    """Words of each row, those of both texts together."""
    words = np.array([len(text.split()) for text in rows.texts], dtype=np.int64)
    return words if rows.pairs is None else words + np.array([len(text.split()) for text in rows.pairs], dtype=np.int64)


def cut(values: NDArray[np.int64] | NDArray[np.float64], unit: str = "") -> list[tuple[str, NDArray[np.int64]]]:
    """Numbers in up to four parts of about the same size: (name, positions)."""
    if not len(values):
        return []
    ends = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)[1:], method="inverted_cdf"))
    place = np.searchsorted(ends, values, side="left")
    parts = []
    for number in range(len(ends) if len(ends) > 1 else 0):
        members = np.flatnonzero(place == number)
        if len(members):
            low, high = values[members].min(), values[members].max()
            name = f"{low:g}" if low == high else f"{low:g} – {high:g}"
            parts.append((f"{name}{unit}", members))
    return parts


def by_value(cells: Sequence[object]) -> list[tuple[str, NDArray[np.int64]]]:
    """The parts of a column: (name, positions)."""
    numbers = all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)
    if numbers and len(set(cells)) > MOST_VALUES:
        return cut(np.array(cells, dtype=np.float64))
    names = np.array([NOTHING if cell is None or cell == "" else str(cell) for cell in cells], dtype=object)
    values, counts = np.unique(names, return_counts=True)
    shown = [str(value) for value in values[np.argsort(-counts, kind="stable")]]
    shown, rest = (
        (shown, set()) if len(shown) <= MOST_VALUES else (shown[: MOST_VALUES - 1], set(shown[MOST_VALUES - 1 :]))
    )
    parts = [(value, np.flatnonzero(names == value)) for value in shown]
    return [*parts, *([(OTHERS, np.flatnonzero([name in rest for name in names]))] if rest else [])]


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
            f"'slices' names the column '{missing[0]}', but {source.describe()} has "
            f"{', '.join(data.column_names)}.{hint}"
        )
    return data


def columns_of(task: Any, split: str, index: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of these columns of a split's rows, whose numbers in the file are `index`. Raises DataError."""
    if not names:
        return {}
    data = _opened(task, split, names)
    columns: dict[str, list[Any]] = {}
    for name in names:
        cells = data[name][:]
        labels = getattr(data.features[name], "names", None)
        if any(isinstance(cells[at], list | dict) for at in index):
            raise DataError(
                f"'slices' names the column '{name}', whose cells are lists; name one of texts, numbers or truth values"
            )
        columns[name] = [
            labels[cells[at]] if labels and isinstance(cells[at], int) and cells[at] >= 0 else cells[at] for at in index
        ]
    return columns


def slices(
    predictions: SplitPredictions, task: Task, score: Score, columns: Mapping[str, Sequence[object]], seed: int
) -> list[dict[str, Any]]:
    """The scores of each part of a split, with intervals, as they stand in `details.json`."""
    groups = [("length", name, members) for name, members in cut(lengths(predictions.rows), " words")]
    groups += [(column, name, members) for column, cells in columns.items() for name, members in by_value(cells)]
    parts = []
    for by, name, members in groups:
        scores, ranges = _scored(predictions, task, score, members, seed) if len(members) >= FEWEST else ({}, {})
        parts.append({"by": by, "name": name, "examples": len(members), "scores": scores, "intervals": ranges})
    return parts


def _scored(
    predictions: SplitPredictions, task: Task, score: Score, members: NDArray[np.int64], seed: int
) -> tuple[dict[str, float], Intervals]:
    part = predictions.part(members)
    if part is None:
        return {}, {}
    try:
        scores = {name: value for name, value in score(*part).items() if np.isfinite(value)}
        ranges = predictions.intervals(task, score, seed, members, RESAMPLES)
    except (DataError, ValueError):  # a score that these examples do not define, such as a correlation of equal numbers
        return {}, {}
    return scores, {name: pair for name, pair in ranges.items() if name in scores and np.isfinite(pair).all()}


def classes(examples: ScoredExamples) -> dict[str, Any] | None:
    """The confusion matrix, and precision, recall and F1 of each class; None where classes are not the same in
    every example."""
    if (
        not examples.classes
        or examples.logits is None
        or examples.labels is None
        or len(examples.classes) > MOST_CLASSES
    ):
        return None
    counts = confusion(examples.logits.argmax(axis=1), examples.labels.astype(np.int64), len(examples.classes))
    right, true, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    each = [
        {
            "name": name,
            "examples": int(true[at]),
            "said": int(predicted[at]),
            "precision": float(right[at] / predicted[at]) if predicted[at] else None,
            "recall": float(right[at] / true[at]) if true[at] else None,
            "f1": float(2 * right[at] / (true[at] + predicted[at])) if true[at] + predicted[at] else None,
        }
        for at, name in enumerate(examples.classes)
    ]
    return {"names": list(examples.classes), "counts": counts.tolist(), "each": each}


def mistakes(predictions: SplitPredictions, examples: ScoredExamples) -> list[dict[str, object]]:
    """The worst of a split as lines of `mistakes.jsonl`, the worst first; of equal ones the earlier.

    Keys: benchmark, split, index (row in the split), text, text_pair (null for single texts), gold, said, confidence
    (null where the model tells none), badness and by (what badness is). Of numbers every row is there by its distance;
    of texts those that differ.
    """
    order = [int(at) for at in np.argsort(-examples.badness, kind="stable") if examples.wrong[at]][:MOST_MISTAKES]
    pairs = predictions.rows.pairs
    return [
        {
            "benchmark": predictions.benchmark,
            "split": predictions.split,
            "index": int(predictions.rows.index[at]),
            "text": predictions.rows.texts[at],
            "text_pair": None if pairs is None else pairs[at],
            "gold": examples.gold[at],
            "said": examples.answers[at],
            "confidence": None if examples.confidence is None else round(float(examples.confidence[at]), 6),
            "badness": round(float(examples.badness[at]), 6),
            "by": examples.order,
        }
        for at in order
    ]


KEYS = ("slices", "classes", "calibration", "mistakes", "overlap")
"""What is added to a benchmark's `details.json`, each by split."""


@dataclass
class Analysis:
    """What was found about one benchmark."""

    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By KEYS, then by split."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def put(self, key: str, split: str, value: object) -> None:
        """Keep what was found, if anything was."""
        if value:
            self.details.setdefault(key, {})[split] = value


def analysed(
    context: Context,
    model: str,
    task: Task,
    predicted: Sequence[SplitPredictions],
    score: Score,
    columns: Mapping[str, Mapping[str, Sequence[object]]],
) -> Analysis:
    """Look behind the scores of a benchmark. `columns` are the cells to slice by, by split and column."""
    analysis = Analysis()
    for split in predicted:
        if split.labels is not None:
            analysis.put("slices", split.split, slices(split, task, score, columns.get(split.split, {}), context.seed))
            examples = split.scored_examples(task)
            if examples is not None:
                _explain(analysis, split, examples)
        _overlap(analysis, context, model, split, score)
    return analysis


def _explain(analysis: Analysis, predictions: SplitPredictions, examples: ScoredExamples) -> None:
    analysis.put("classes", predictions.split, classes(examples))
    if examples.logits is not None and examples.labels is not None and len(examples.labels):
        analysis.put("calibration", predictions.split, calibration(examples.logits, examples.labels))
    elif examples.confidence is not None:
        analysis.put("calibration", predictions.split, _without_logits(examples))
    worst = mistakes(predictions, examples)
    analysis.mistakes += worst
    analysis.put(
        "mistakes", predictions.split, {"wrong": int(examples.wrong.sum()), "kept": len(worst), "by": examples.order}
    )


def _without_logits(examples: ScoredExamples) -> dict[str, Any]:
    """Answers that are chosen among candidates of their own: the bins and the error, no temperature."""
    assert examples.confidence is not None
    right = ~examples.wrong
    return {
        "temperature": 1.0,
        "ece": expected_error(examples.confidence, right),
        "confidence": float(examples.confidence.mean()),
        "accuracy": float(right.mean()),
        "bins": reliability(examples.confidence, right),
    }


def _overlap(analysis: Analysis, context: Context, model: str, predictions: SplitPredictions, score: Score) -> None:
    labelled = predictions.labels is not None
    answers, labels = (predictions.part(ALL) if labelled else None) or (None, None)
    report = contamination.overlap_report(context, model, predictions.rows, score, answers, labels)
    analysis.put("overlap", predictions.split, report)
    if (
        report
        and (warning := contamination.overlap_warning(predictions.benchmark, predictions.split, report)) is not None
    ):
        analysis.warnings.append(warning)


def look_for_overlap(
    context: Context, predicted: Sequence[SplitPredictions], details: dict[str, dict[str, Any]]
) -> list[str]:
    """The overlap check for what was scored in another way than `analysed` sees, zero-shot questions for one.

    Puts it into the details of these benchmarks; returns the sentences to warn with.
    """
    warnings = []
    for split in predicted:
        details_of_benchmark = details.get(split.benchmark, {})
        if split.split in details_of_benchmark.get("overlap", {}) or "model" not in details_of_benchmark:
            continue
        report = contamination.overlap_report(context, details_of_benchmark["model"], split.rows)
        if report is None:
            continue
        details_of_benchmark.setdefault("overlap", {})[split.split] = report
        if (warning := contamination.overlap_warning(split.benchmark, split.split, report)) is not None:
            warnings.append(warning)
    return warnings
