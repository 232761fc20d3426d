"""From outputs and labels to a task's scores: argmax for classes, the single output for numbers, texts as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Score, Task
from pipelines.metrics.base import load_metric
from pipelines.tasks.evaluation import evaluation_of
from pipelines.tasks.text_to_text import AsText


def score(task: Task) -> Score:
    """The task's metrics as one function of a model's answers and of the labels, as the task's kind compares them."""
    return evaluation_of(task.kind).score(task)


def score_texts(task: Task) -> Score:
    """The task's metrics as one function of the texts that were written (examples,) and the references (examples,)."""
    if isinstance(task, AsText):
        return partial(_score_answers, [_compute(metric) for metric in task.metrics], task)
    return partial(_score_texts, [_compute(metric) for metric in task.metrics], task)


def graded(task: Task, texts: Any) -> Any:
    """What of each text the task compares (examples,); all of it where the task picks nothing out. Raises DataError."""
    choose = getattr(task, "graded", None)
    if choose is None:
        return texts
    compared = choose([str(each) for each in texts])
    if len(compared) != len(texts):
        raise DataError(f"'{task.name}' has {len(compared)} answers for {len(texts)} texts; they must be as many")
    return np.asarray(compared, dtype=object)


def score_decisions(task: Task) -> Score:
    """The task's metrics as one function of logits (examples, outputs) and labels (examples,)."""
    classes = task.head.labels
    name = task.name
    metrics = [_compute(metric) for metric in task.metrics]

    def of(logits: object, labels: object) -> dict[str, float]:
        logits = checked_logits(np.asarray(logits), len(classes) or 1, name)
        labels = np.asarray(labels)
        if len(labels) != len(logits):
            raise DataError(f"'{name}' has {len(logits)} predictions but {len(labels)} labels; they must be as many")
        if len(labels) == 0:
            raise DataError(f"'{name}' has no example to score; choose a split with rows, or raise max_eval_samples")
        predictions = decide(logits)
        if not classes:
            labels = _checked_numbers(labels, name)
            return _merged(metric(predictions, labels) for metric in metrics)
        labels = _checked_classes(labels, classes, name)
        return _merged(metric(predictions, labels, classes=len(classes)) for metric in metrics)

    return of


def _score_texts(
    metrics: Sequence[Callable[..., dict[str, float]]], task: Task, texts: Any, references: Any
) -> dict[str, float]:
    if len(texts) != len(references):
        raise DataError(
            f"'{task.name}' has {len(texts)} written texts but {len(references)} references; they must be as many"
        )
    if len(references) == 0:
        raise DataError(f"'{task.name}' has no example to score; choose a split with rows, or raise max_eval_samples")
    texts, references = graded(task, texts), graded(task, references)
    return _merged(metric(texts, references) for metric in metrics)


def _score_answers(
    metrics: Sequence[Callable[..., dict[str, float]]], task: AsText, texts: Any, references: Any
) -> dict[str, float]:
    """Classes and numbers that were written as texts, scored as what they stand for."""
    if len(references) == 0:
        raise DataError(f"'{task.name}' has no example to score; choose a split with rows, or raise max_eval_samples")
    predictions, labels, _ = task.read(list(texts), list(references))
    classes = len(task.task.head.labels)
    settings = {"classes": classes} if classes else {}
    return _merged(metric(predictions, labels, **settings) for metric in metrics)


def decide(logits: NDArray[Any]) -> NDArray[Any]:
    """One prediction an example: the class with the highest logit, or the number of a single output."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    chosen: NDArray[np.int64] = logits.argmax(axis=1)
    return chosen


def checked_logits(logits: NDArray[Any], outputs: int, name: str) -> NDArray[Any]:
    """The logits, if they are finite and have one column an output. Raises ModelError."""
    if logits.ndim != 2 or logits.shape[1] != outputs:
        raise ModelError(
            f"'{name}' needs logits of shape (examples, {outputs}), but the model gives {logits.shape}; "
            "evaluate a model that was fine-tuned on this task"
        )
    wrong = ~np.isfinite(logits).all(axis=1)
    if wrong.any():
        raise ModelError(
            f"the model gives NaN or infinity for {int(wrong.sum())} of {len(logits)} examples of '{name}' "
            f"(first in row {int(wrong.argmax())}): its training diverged, so lower its learning rate"
        )
    return logits


def _compute(metric: str) -> Callable[..., dict[str, float]]:
    return load_metric(metric).compute


def _merged(scores: Any) -> dict[str, float]:
    return {name: value for each in scores for name, value in each.items()}


def _checked_classes(labels: NDArray[Any], classes: tuple[str, ...], name: str) -> NDArray[Any]:
    wrong = np.ones(len(labels), dtype=bool)
    if labels.dtype.kind in "iufb":
        wrong = ~((labels >= 0) & (labels < len(classes)) & (labels == np.floor(labels)))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"'{name}' has the label {labels[row].item()!r} in row {row}, but its classes are "
            f"0 … {len(classes) - 1} ({', '.join(classes[:6])}{', …' if len(classes) > 6 else ''}); "
            "a label of -1 marks a split whose labels are not public"
        )
    return labels


def _checked_numbers(labels: NDArray[Any], name: str) -> NDArray[Any]:
    wrong = ~np.isfinite(labels) if labels.dtype.kind in "iufb" else np.ones(len(labels), dtype=bool)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"'{name}' has the label {labels[row].item()!r} in row {row}, which is no finite number")
    return labels
