"""What every metric is, as an `evaluate.Metric`, and the checks of what it is given.

A pure metric function as an `evaluate.Metric`, for `add_batch`, `compute` and `evaluate.combine`.

`evaluate.load` fetches metric scripts over the network; these classes need none. Importing `evaluate` takes five
seconds, so each metric's module makes its class only when somebody asks for it by name.

Predictions and references, checked once for every metric: two lists of the same length, finite, not empty.

Hypotheses and references, checked once for every metric of texts.

The confusion matrix: how often each class was taken for each other one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


def metric_module(
    module: str,
    name: str,
    compute: Callable[..., dict[str, float]],
    values: Literal["int64", "float64", "string", "answers", "tags"],
    description: str,
) -> type:
    """The class `name` of `module`: an `evaluate.Metric` over `compute(predictions, references, **options)`.

    `values` are what both hold: numbers or texts; `answers` are a text and a list of right ones, `tags` two lists of
    texts.
    """
    import datasets
    import evaluate

    text, texts = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
    one, other = {"answers": (text, texts), "tags": (texts, texts)}.get(values) or (
        datasets.Value(values),
        datasets.Value(values),
    )

    class ProjectMetric(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=description,
                citation="",
                inputs_description=compute.__doc__ or "",
                features=datasets.Features({"predictions": one, "references": other}),
            )

        def _compute(self, *, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            return compute(predictions, references, **options)

    # `evaluate` names a metric, and its cache folder, after its class
    ProjectMetric.__module__, ProjectMetric.__name__, ProjectMetric.__qualname__ = module, name, name
    ProjectMetric.__doc__ = description
    return ProjectMetric


def on_demand(module: str, name: str, *rest: Any) -> Callable[[str], type]:
    """The `__getattr__` of a metric's module: it knows one name, that of the class made by `metric_module(module,
    name, *rest)`."""
    made = cache(lambda: metric_module(module, name, *rest))

    def get(wanted: str) -> type:
        if wanted == name:
            return made()
        raise AttributeError(f"module '{module}' has no attribute '{wanted}'")

    return get


def paired_labels(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as class ids. Raises ValueError where they are not whole numbers, differ in length, or are empty."""
    predicted, true = _paired(predictions, references)
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iub" and not bool(np.all(values == np.floor(values))):
            raise ValueError(f"{name} must be class ids, which are whole numbers")
    return predicted.astype(np.int64), true.astype(np.int64)


def paired_numbers(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as numbers in double precision. Raises ValueError where they differ in length or are empty."""
    predicted, true = _paired(predictions, references)
    return predicted.astype(np.float64), true.astype(np.float64)


def _paired(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, true = np.asarray(predictions), np.asarray(references)
    if predicted.ndim != 1 or true.ndim != 1 or len(predicted) != len(true):
        raise ValueError(
            f"predictions and references must be lists of one length, found shapes {predicted.shape} and {true.shape}"
        )
    if len(predicted) == 0:
        raise ValueError("there is no example to score")
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iubf":
            raise ValueError(f"{name} must be numbers, found {values.dtype}")
        if values.dtype.kind == "f" and not bool(np.all(np.isfinite(values))):
            raise ValueError(f"{name} must be finite numbers, found NaN or infinity")
    return predicted, true


def paired_texts(predictions: Any, references: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Both as lists of texts. Raises ValueError where they are no texts, differ in length, or are empty."""
    written, true = list(predictions), list(references)
    if len(written) != len(true):
        raise ValueError(f"predictions and references must be as many, found {len(written)} and {len(true)}")
    if not written:
        raise ValueError("there is no example to score")
    for name, texts in (("predictions", written), ("references", true)):
        wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{name} must be texts, found {wrong[0]}")
    return written, true


def confusion(
    predictions: NDArray[np.int64], references: NDArray[np.int64], classes: int | None = None
) -> NDArray[np.int64]:
    """Counts of shape (true class, predicted class).

    With `classes`, rows and columns are the ids 0 … classes - 1 (ValueError for any other id); without, they are the
    ids that occur in either list, in ascending order.
    """
    if classes is None:
        known, both = np.unique(np.concatenate([predictions, references]), return_inverse=True)
        predictions, references = both[: len(predictions)], both[len(predictions) :]
        classes = len(known)
    elif min(predictions.min(), references.min()) < 0 or max(predictions.max(), references.max()) >= classes:
        raise ValueError(f"a class id lies outside 0 … {classes - 1}")
    cells: NDArray[np.int64] = np.bincount(references * classes + predictions, minlength=classes * classes)
    return cells.reshape(classes, classes)
