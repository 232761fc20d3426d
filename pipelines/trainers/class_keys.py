"""The keys of a subject that are about classes: smoothed labels, and classes that count more than others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from pipelines.blocks import Found, Mistakes, show
from pipelines.errors import DataError

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.trainers.lesson import Teacher
    from pipelines.trainers.subject import Subject


def _weights(value: Any) -> Any:
    if value is None or value == "balanced":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
        if all(each >= 0 and math.isfinite(each) for each in value) and any(value):
            return tuple(float(each) for each in value)
        raise Mistakes([((), f"is {show(value)}, must be finite, hold no negative number, and at least one above 0")])
    raise Mistakes([((), f"is {show(value)}, must be balanced or a list of numbers, one a class")])


ClassWeights = Annotated[Literal["balanced"] | tuple[float, ...] | None, BeforeValidator(_weights)]
"""The type of the key `class_weights`."""


def mistakes(subject: Subject, task: Task, teacher: Teacher) -> Iterable[Found]:
    """What is wrong with the keys for this kind of task, as far as the recipe tells."""
    writes = task.kind == "seq2seq" or subject.as_text
    if subject.label_smoothing_factor and task.kind not in teacher.smoothed:
        remedy = "set objective.label_smoothing" if writes else "leave it out"
        what = "answers that are written" if subject.as_text else f"a task of the kind {task.kind}"
        yield ("label_smoothing_factor",), f"is {subject.label_smoothing_factor}, but does not reach {what}; {remedy}"
    if subject.class_weights is None:
        return
    if subject.as_text:
        yield ("class_weights",), "is for tasks that are learnt with a head of classes, but here the answers are written; leave it out"
    elif task.kind != "classification":
        yield ("class_weights",), f"is for tasks of the kind classification, but this one is of the kind {task.kind}; leave it out"
    elif isinstance(subject.class_weights, tuple) and task.labels and len(subject.class_weights) != len(task.labels):
        yield ("class_weights",), _count(subject.class_weights, task.labels)


def class_weights(subject: Subject, task: Task, labels: Sequence[Any]) -> Any:
    """Weights (classes,) by which the loss of each class is multiplied, as a tensor; None where all count the same.

    `balanced` is n / (classes · n_class), scikit-learn's formula. Any weights are scaled so that their mean over the
    training rows is 1: the loss of a whole epoch is then torch's weighted mean, and the learning rate keeps its meaning.
    A batch is divided by its number of examples, not by its own sum of weights, which would make what an example
    counts depend on the others in its batch. Raises DataError for weights that do not fit the classes.
    """
    import torch

    if subject.class_weights is None:
        return None
    names = task.head.labels
    counts = torch.bincount(torch.tensor(list(labels)), minlength=len(names)).double()
    if subject.class_weights == "balanced":
        weights = torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)), 1.0)
    elif len(subject.class_weights) != len(names):
        raise DataError(f"task '{task.name}': class_weights {_count(subject.class_weights, names)}")
    else:
        weights = torch.tensor(subject.class_weights, dtype=torch.double)
    mean = (weights * counts).sum() / counts.sum()
    if mean == 0:
        raise DataError(f"task '{task.name}': class_weights are 0 for every class that the training rows have")
    return (weights / mean).float()


def _count(weights: Sequence[float], names: Sequence[str]) -> str:
    known = ", ".join(names[:20])
    return f"has {len(weights)} numbers, must have {len(names)}, in the order of the classes: {known}"
